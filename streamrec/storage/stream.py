"""Streams deliver one object's bytes in order: a ResumingStream across broken connections, a
DirectStream of one body.

The contract, on which the rest of streamrec relies:

* The bytes are those of **one version** of the object: the first response pins version and size,
  each later request insists on that version, and bytes of another version are never delivered.
* After a body breaks off, stalls, or ends early, another request continues at the byte reached. No
  byte is requested twice except those that a broken connection still held, and none is delivered
  twice.
* `readinto` waits for at least one byte and returns 0 only at the end. It never writes past the
  buffer, and writes only while it is awaited: after a cancelled call nothing writes to the buffer
  any more.
* A second request for the same bytes races a late one (`request.py`).
* An error closes the stream and its connection. All bytes before the error have been delivered.
* The caller controls back-pressure: only the socket's buffer is read ahead of `readinto`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from streamrec.errors import ClosedError, ObjectChangedError, StorageError
from streamrec.storage.backend import Backend, Body, ObjectInfo
from streamrec.storage.faults import Cause, RetryPolicy, TransientError, changed_error
from streamrec.storage.request import HedgedRequest
from streamrec.storage.retry import Failures
from streamrec.storage.statistics import Statistics, Tally
from streamrec.storage.traffic import Traffic

CLOSED: Final = "{}: the stream is closed; open a new one"


def stop_of(info: ObjectInfo, end: int | None) -> int | None:
    """Returns the end of a stream: the smaller of the requested end and the object's size.

    None if that is unknown.

    >>> info = ObjectInfo("x", 10, None)
    >>> stop_of(info, 20), stop_of(info, 5), stop_of(info, None)
    (10, 5, 10)
    >>> stop_of(ObjectInfo("x", None, None), 20) is None
    True
    """
    if info.size is None:
        return None
    return info.size if end is None else min(end, info.size)


class DirectStream:
    """A ByteStream over one body of a store whose bodies never stall.

    See `Backend.may_stall`; `open` opens it.
    """

    def __init__(
        self,
        backend: Backend,
        path: str,
        start: int,
        end: int | None,
        version: str | None,
        statistics: Statistics,
        tally: Tally,
        size: int | None = None,
    ) -> None:
        self.info = ObjectInfo(path, None, version)
        self.position = start
        self.tally = tally
        self._assumed = size
        self._backend = backend
        self._end = end
        self._stop: int | None = None
        self._statistics = statistics
        self._body: Body | None = None
        self._idle_since = 0.0

    async def open(self) -> None:
        """Opens the body, which sets size and version in `info`; one attempt."""
        began = time.monotonic()
        self._body = await self._backend.open(
            self.info.path, self.position, self._end, self.info.version
        )
        self.info = self._body.info
        if self.info.size is None:
            self.info = replace(self.info, size=self._assumed)
        self._stop = stop_of(self.info, self._end)
        self._statistics.add_stream(self.info.path, self.tally)
        self._idle_since = time.monotonic()
        self.tally.first_byte(self._idle_since - began)

    async def readinto(self, buffer: memoryview) -> int:
        """Reads the next bytes as `ResumingStream.readinto`."""
        if self._body is None:
            raise ClosedError(CLOSED.format(self.info.path))
        if self._end is not None:
            buffer = buffer[: max(0, self._end - self.position)]
        if not buffer or self.position == self._stop:
            return 0
        began = time.monotonic()
        try:
            count = await self._body.readinto(buffer)
            if not count and self._stop is not None and self.position < self._stop:
                raise changed_error(self.info.path, self.position)
        except BaseException:
            await self.aclose()
            raise
        self.position += count
        now = time.monotonic()
        self.tally.block(count, now - began, began - self._idle_since)
        self._idle_since = now
        return count

    async def aclose(self) -> None:
        """Closes the body, even if bytes are left. May be called twice."""
        body = self._body
        self._body = None
        if body is not None:
            self._statistics.remove_stream(self.tally)
            await body.aclose()


class ResumingStream:
    """A ByteStream over a backend; `open` sends its first request.

    Streams over ranges of one object share a tally. `info` has the object's size and version as far
    as they are known. `splits`, known after `open`, says whether parallel requests for other ranges
    are possible. `size` is that of a listing, a manifest or an index; it counts where no answer has
    one, and the store is asked at the end where nothing has.
    """

    def __init__(
        self,
        backend: Backend,
        policy: RetryPolicy,
        path: str,
        start: int,
        end: int | None,
        version: str | None,
        traffic: Traffic | None = None,
        tally: Tally | None = None,
        size: int | None = None,
    ) -> None:
        self.info = ObjectInfo(path, None, version)
        self.position = start
        self._end = end
        self._stop: int | None = None
        self._request: HedgedRequest | None = None
        self.splits = False
        self._traffic = traffic or Traffic()
        self.tally = tally or Tally(self._traffic.tally)
        self._traffic.statistics.add_stream(path, self.tally)
        self._failures = Failures(policy, path, self._traffic, self.tally)
        self._make_request = partial(HedgedRequest, backend, self._failures, assumed=size)
        self._idle_since = time.monotonic()
        self._closed = False

    def cut(self, end: int) -> None:
        """Moves the end forward to `end`, which is after `position`."""
        self._end = end
        self._stop = stop_of(self.info, end)
        if self._request is not None:
            self._request.end = end

    def hedge(self) -> bool:
        """Takes one more request from the budget of hedges, because this one is slow.

        False if it may not be sent.
        """
        return self._traffic.hedge(self._failures.limiter, self.tally, others_on_time=True)

    async def open(self) -> None:
        """Waits for the first response, which sets size and version in `info`."""
        try:
            while self._request is None:
                try:
                    await self._connect()
                except TransientError as fault:
                    await self._wait_after(fault)
        except BaseException:
            await self.aclose()
            raise
        self._idle_since = time.monotonic()

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes, writes them at the buffer's start, and returns their number.

        0 only at the end.
        """
        if self._closed:
            raise ClosedError(CLOSED.format(self.info.path))
        if self._end is not None and len(buffer) > self._end - self.position:
            buffer = buffer[: max(0, self._end - self.position)]
        if not buffer or self.position == self._stop:
            return 0
        began = time.monotonic()
        try:
            while True:
                try:
                    count = await self._read_on(buffer)
                    break
                except TransientError as fault:
                    await self._wait_after(fault)
        except BaseException:
            await self.aclose()
            raise
        if self._end is not None:
            count = min(count, self._end - self.position)  # it was cut meanwhile
        if self._failures.waiting:
            self._failures.progress()
        self.position += count
        now = time.monotonic()
        self.tally.block(count, now - began, began - self._idle_since)
        self._idle_since = now
        return count

    async def _read_on(self, buffer: memoryview) -> int:
        """Reads from the open body, or from a new one, which must end at the end of the object."""
        request = self._request or await self._connect()
        count = await request.readinto(buffer)
        if request.info is not self.info:
            self.info = request.info
            self._stop = stop_of(request.info, self._end)
        if not count and self._stop is None:
            await self._ask_size(request)
        await self._check_end(request, count)
        if not count and self._stop is not None and self.position < self._stop:
            coding = f" (Content-Encoding: {self.info.encoding})" if self.info.encoding else ""
            reason = f"the body{coding} ended at byte {self.position:,} of {self._stop:,}"
            raise TransientError(Cause.BROKEN, reason)
        return count

    async def aclose(self) -> None:
        """Frees the connection, even if bytes are left. May be called twice."""
        if not self._closed:
            self._closed = True
            if self._failures.waiting:
                self._failures.progress()
            self._traffic.statistics.remove_stream(self.tally)
        request, self._request = self._request, None
        if request is not None:
            await request.aclose()

    async def _connect(self) -> HedgedRequest:
        """Sends a request for the missing bytes, and waits for its response."""
        await self._failures.turn()
        self._request = request = self._make_request(self.info, self.position, self._end)
        await request.open()
        self.splits = request.splits
        self.info = request.info
        self._stop = stop_of(request.info, self._end)
        self._failures.limiter.record_success()
        return request

    async def _ask_size(self, request: HedgedRequest) -> None:
        """Asks for the size after a body without a length has ended, perhaps too early.

        Many servers do not know the size of such an object, or refuse HEAD: then the end counts.
        """
        found = None
        with suppress(StorageError, TransientError, TimeoutError, LookupError, ValueError):
            async with asyncio.timeout(self._failures.policy.request_timeout()):
                found = await request.stat()
        if found is None:
            return
        if None not in (found.version, self.info.version) and found.version != self.info.version:
            raise changed_error(self.info.path, self.position, self._end)
        if found.size is not None and found.size > self.position:
            self.info = replace(self.info, size=found.size)
            self._stop = stop_of(self.info, self._end)

    async def _check_end(self, request: HedgedRequest, count: int) -> None:
        """Refuses bytes after the end of the object, where only its known size shows that end.

        A listing may be older than a longer object, whose first records would count as all.
        """
        size = self.info.size
        position = self.position + count
        if size is None or position < size or not count:
            return
        if position == size and request.is_sized:
            return
        reason = f"the body has more bytes than the {size:,} of the object"
        if request.is_sized:
            raise TransientError(Cause.WRONG_ANSWER, reason)
        if position > size or await request.readinto(memoryview(bytearray(1))):
            raise ObjectChangedError(
                f"{reason} in its listing, manifest, index or HEAD: it was written since; to read "
                "it as it is now, make the Dataset again, or run the command again",
                self.info.path,
                size,
            )

    async def _wait_after(self, fault: TransientError) -> None:
        """Drops the failed request, and waits until the next one may be sent, or gives up."""
        request, self._request = self._request, None
        if request is not None:
            await request.aclose()
        await self._failures.wait(fault, self.position, self._end)
