"""Sends the parts of an upload, several at the same time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from streamrec.storage.backend import PartSink
from streamrec.storage.part_cutter import UploadPart
from streamrec.storage.retry import ObjectRequests

PARALLEL: Final = 4
"""Parts in progress at the same time."""

LARGE_BYTES = 16 << 20
"""Fewer parts are in progress at the same time if they are larger than this."""


def slots_for(part_bytes: int, slots: int) -> int:
    """How many of all slots a part takes: a large one takes more, so that memory stays bounded.

    >>> slots_for(8 << 20, 4), slots_for(40 << 20, 4), slots_for(400 << 20, 4)
    (1, 3, 4)
    """
    return min(slots, -(-part_bytes // LARGE_BYTES))


class PartSender:
    """Sends parts to a sink in tasks of their own, and keeps the first error.

    A caller first waits for slots (`reserve`), then starts the part in them; each part frees its
    slots at its end.

    Attributes:
        error: The first error of a part. The parts after it are still sent.
    """

    def __init__(self, sink: PartSink, requests: ObjectRequests, parallel: int) -> None:
        self.error: Exception | None = None
        self._sink = sink
        self._requests = requests
        self._slots = min(parallel, sink.parallel)
        self._free = asyncio.Semaphore(self._slots)
        self._tasks: set[asyncio.Task[None]] = set()

    async def reserve(self, part_bytes: int) -> int:
        """Waits until a part of this size may be sent; returns the slots that it takes."""
        slots = slots_for(part_bytes, self._slots)
        taken = 0
        try:
            while taken < slots:
                await self._free.acquire()
                taken += 1
        except BaseException:  # a cancelled writer keeps no slot
            self.release(taken)
            raise
        return slots

    def release(self, slots: int) -> None:
        """Frees slots, for a part that was sent or will not be."""
        for _ in range(slots):
            self._free.release()

    def start(self, part: UploadPart, slots: int) -> None:
        """Begins to send a part in slots that were reserved for it."""
        task = asyncio.get_running_loop().create_task(self._send(part, slots))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Waits until no part is in progress."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Cancels all parts in progress, and waits for their ends."""
        for task in self._tasks:
            task.cancel()
        await self.wait()

    async def _send(self, part: UploadPart, slots: int) -> None:
        put = partial(self._sink.put_part, part.index, part.start, part.pieces, part.whole)
        try:
            await self._requests.attempt(
                put,
                "storing a part",
                limit=self._requests.policy.request_timeout(part.size),
                start=part.start,
                end=part.end,
            )
        except Exception as error:  # the next `write` or `complete` raises it
            self.error = self.error or error
        finally:
            self.release(slots)
