"""Writing blocks while they are read: a thread of its own writes, and no reader waits for it.

A stream copies what it reads into buffers of half a megabyte, and the thread writes them. When all
buffers are in use, because the disk is slower than the network, the block ends there: what was
written of it stays, and what cannot be written in time is not cached.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from streamrec.storage.cache.disk_cache import BlockWriter, DiskCache, Lock
from streamrec.storage.cache.names import ObjectKey

BUFFER_BYTES: Final = 512 << 10
"""Bytes that are written at a time."""

MEMORY_BYTES: Final = 64 << 20
"""How many bytes all buffers of a process may take."""

KEPT_BUFFERS: Final = 16
"""Buffers that stay allocated for the next ones: fresh memory costs a page fault per 4 KiB."""


class Buffers:
    """The memory of what waits to be written."""

    def __init__(self, limit: int = MEMORY_BYTES) -> None:
        self._limit = limit
        self._taken = 0
        self._free: list[bytearray] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> bytearray | None:
        """Returns a buffer of `size` bytes; None if all memory is in use."""
        with self._lock:
            if self._taken + size > self._limit:
                return None
            self._taken += size
            if size == BUFFER_BYTES and self._free:
                return self._free.pop()
        return bytearray(size)

    def give_back(self, buffer: bytearray) -> None:
        """Takes a buffer back."""
        with self._lock:
            self._taken -= len(buffer)
            if len(buffer) == BUFFER_BYTES and len(self._free) < KEPT_BUFFERS:
                self._free.append(buffer)


class Writer:
    """The thread that writes the blocks of one cache, in the order in which they were given."""

    def __init__(self, cache: DiskCache, buffers: Buffers | None = None) -> None:
        self.cache = cache
        self.buffers = buffers or Buffers()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Has the thread do something; an OSError of it is one of the cache."""
        self._jobs.put(job)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="streamrec cache", daemon=True
                    )
                    self._thread.start()

    def flush(self, patience: float) -> bool:
        """Waits until everything submitted before is done; False after `patience` seconds.

        A worker of a DataLoader may end at once after it.
        """
        if self._thread is None:
            return True
        done = threading.Event()
        self.submit(self.cache.usage.settle)
        self.submit(done.set)
        return done.wait(patience)

    def end(self, patience: float) -> None:
        """Ends the thread when everything submitted before is done, or without waiting longer."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(patience)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except OSError as error:
                self.cache.fail(error, "writing a block")
            except Exception as error:  # the thread must live: a reader may wait for its end
                self.cache.fail(OSError(repr(error)), "writing a block")


class Fill:
    """One block that a stream fills with the bytes that it reads.

    The loop's thread calls `add` and then `end`; the other methods run in the writer's thread, in
    order. Bytes that are not admitted are reported by `on_refused`, in the writer's thread.

    Attributes:
        stop: Where the block ends at the latest.
    """

    def __init__(
        self,
        writer: Writer,
        key: ObjectKey,
        start: int,
        stop: int,
        *,
        on_refused: Callable[[int], None],
        locked: bool = False,
        after: Fill | None = None,
    ) -> None:
        self.stop = stop
        self._writer = writer
        self._key = key
        self._start = start
        self._on_refused = on_refused
        self._steps: BlockSteps = BlockSteps(
            locked=locked, after=None if after is None else after._steps
        )
        self._buffer: bytearray | None = None
        self._filled = 0
        self._position = start
        self._cut = False

    def add(self, data: memoryview) -> None:
        """Adds the next bytes, copied."""
        while data and not self._cut and not self._steps.refused:
            if self._buffer is None:
                size = min(BUFFER_BYTES, self.stop - self._position)
                self._buffer = self._writer.buffers.take(size)
                self._filled = 0
                if self._buffer is None:
                    self._cut = True
                    break
            count = min(len(data), len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + count] = data[:count]
            self._filled += count
            self._position += count
            data = data[count:]
            if self._filled == len(self._buffer):
                self._give()
        if data:
            self._on_refused(len(data))

    def end(self, *, goes_on: bool = False) -> None:
        """Completes the block with the bytes so far; the stream `goes_on` with the next block."""
        if self._buffer is not None:
            self._give()
        next_start = self.stop if goes_on and self._position == self.stop else None
        self._writer.submit(partial(self._finish, next_start))

    def _give(self) -> None:
        buffer, self._buffer = self._buffer, None
        assert buffer is not None
        self._writer.submit(partial(self._write, buffer, self._filled))

    def _write(self, buffer: bytearray, count: int) -> None:
        steps = self._steps
        cache = self._writer.cache
        try:
            if steps.block is None and not steps.refused:
                steps.begin(cache, self._key, self._start, self.stop)
            if steps.refused or steps.block is None:
                self._on_refused(count)
                return
            with memoryview(buffer) as view:
                steps.block.write(view[:count])
            steps.touch(cache, self._key, self._start)
        except OSError:
            steps.give_up(cache)
            raise
        finally:
            self._writer.buffers.give_back(buffer)

    def _finish(self, next_start: int | None) -> None:
        steps = self._steps
        cache = self._writer.cache
        try:
            if next_start is not None and steps.block is not None and steps.locked:
                # before the lock of this block is freed, so that no other process comes between
                steps.next_locked = cache.lock(self._key, next_start) is Lock.HELD
            if steps.block is not None:
                steps.block.commit()
        except OSError:
            steps.give_up(cache)
            raise
        finally:
            steps.unlock(cache, self._key, self._start)


class BlockSteps:
    """What the writer's thread knows of a block that is being filled.

    Attributes:
        block: The open block.
        locked: Whether this process holds the lock of the block.
        next_locked: Whether it got that of the next block; None if it has not tried.
        refused: Whether the block is not admitted.
    """

    def __init__(self, *, locked: bool, after: BlockSteps | None) -> None:
        self.block: BlockWriter | None = None
        self.locked = locked
        self.next_locked: bool | None = None
        self.refused = False
        self._after = after
        self._touched = 0.0

    def begin(self, cache: DiskCache, key: ObjectKey, start: int, stop: int) -> None:
        """Has the block admitted, or sets `refused`."""
        if self._after is not None:
            self.locked = bool(self._after.next_locked)
            self.refused = self._after.next_locked is False  # another process fetches it
            self._after = None
        if not self.refused:
            self.block = cache.admit(key, start, stop - start)
            self.refused = self.block is None
        if self.refused:
            self.unlock(cache, key, start)

    def touch(self, cache: DiskCache, key: ObjectKey, start: int) -> None:
        """Shows others that the fetch makes progress."""
        now = time.monotonic()
        if self.locked and now - self._touched > 0.2:
            self._touched = now
            cache.touch(key, start)

    def give_up(self, cache: DiskCache) -> None:
        """Removes what was written of the block."""
        block, self.block = self.block, None
        self.refused = True
        if block is not None:
            cache.discard(block)

    def unlock(self, cache: DiskCache, key: ObjectKey, start: int) -> None:
        """Frees the lock, if it is held."""
        if self._after is not None:  # no byte of this block came
            self.locked = bool(self._after.next_locked)
            self._after = None
        if self.locked:
            self.locked = False
            cache.unlock(key, start)
