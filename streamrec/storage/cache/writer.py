"""Writing blocks while they are read: a thread of its own writes, and no reader waits for it.

A stream hands on what it reads, a megabyte at a time: the memory in which it arrived, where that
stays as it is, and else a copy. When too much waits, because the disk is slower than the network,
the block ends there: what was written of it stays, and what cannot be written in time is not
cached.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from streamrec import kernels
from streamrec.storage.cache.block_file import Checksums, file_bytes
from streamrec.storage.cache.disk_cache import BlockWriter, DiskCache, Lock
from streamrec.storage.cache.files import write_all
from streamrec.storage.cache.names import ObjectKey
from streamrec.storage.cache.packs import SHORT_BYTES, ShortBlock
from streamrec.storage.cache.preallocation import Preallocation, cut_off
from streamrec.storage.ledger import UnwrittenBytes

WRITE_BYTES: Final = 1 << 20
"""Bytes that are written at a time."""

SMALL_PIECE: Final = 32 << 10
"""Shorter pieces of short objects are copied: they would keep much larger blocks alive."""

HURRIED_BYTES: Final = 64 << 10
"""Bytes that are written at a time while there is little room for those that wait."""

GATHER_SECONDS: Final = 0.05
"""For so long a short object that other processes may wait for waits for more to be written."""

MOST_PIECES: Final = 64
"""Pieces that are written at a time; the system takes a thousand."""


class Writer:
    """The thread that writes the blocks of one cache, in the order in which they were given."""

    def __init__(self, cache: DiskCache) -> None:
        self.cache = cache
        self.preallocation = Preallocation()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._short: dict[str, list[ShortBlock]] = {}
        self._short_bytes = 0
        self._short_until: float | None = None
        self._gathering = threading.Lock()
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

    def add_short(self, block: ShortBlock) -> None:
        """Has a short object written together with others, when there are enough; any thread.

        A job for each of them would cost more than their bytes: each wakes the thread.
        """
        with self._gathering:
            self._short.setdefault(block.key.set_name, []).append(block)
            self._short_bytes += block.key.size
            enough = self._short_bytes >= WRITE_BYTES
            first = block.locked and self._short_until is None
            if first:
                self._short_until = time.monotonic() + GATHER_SECONDS
        if enough:
            self.write_short()
        elif first:
            self.submit(do_nothing)  # the thread learns how long it may sleep

    def write_short(self) -> None:
        """Has all short objects written that wait for others."""
        with self._gathering:
            waiting, self._short = self._short, {}
            self._short_bytes = 0
            self._short_until = None
        for blocks in waiting.values():
            for first in range(0, len(blocks), MOST_PIECES):
                few = blocks[first : first + MOST_PIECES]
                self.submit(partial(self.cache.packs.write, few))

    def flush(self, patience: float) -> bool:
        """Waits until everything submitted before is done; False after `patience` seconds.

        A worker of a DataLoader may end at once after it.
        """
        self.write_short()
        if self._thread is None:
            return True
        done = threading.Event()
        self.submit(self.cache.packs.publish)
        self.submit(self.cache.usage.settle)
        self.submit(done.set)
        return done.wait(patience)

    def end(self, patience: float) -> bool:
        """Ends the thread when everything submitted before is done; False if that takes longer."""
        if self._thread is None:
            return True  # nothing was written, but at most short objects whose run was not closed
        self.write_short()
        self.submit(self.cache.packs.publish)
        self._jobs.put(None)
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            until = self._short_until
            patience = None if until is None else max(0.0, until - time.monotonic())
            if patience == 0.0:
                self.write_short()
                continue
            try:
                job = self._jobs.get(timeout=patience)
            except queue.Empty:
                continue
            if job is None:
                return
            try:
                job()
            except OSError as error:
                self.cache.fail(error, "writing a block")
            except Exception as error:  # the thread must live: a reader may wait for its end
                self.cache.fail(OSError(repr(error)), "writing a block")


def do_nothing() -> None:
    """A job that only wakes the thread."""


class Fill:
    """One block that a stream fills with the bytes that it reads.

    The loop's thread calls `add` and then `end`; the other methods run in the writer's thread, in
    order. Bytes that are not admitted are reported by `on_refused`, in the writer's thread.
    `unwritten` has room for those that wait.

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
        unwritten: UnwrittenBytes,
        on_refused: Callable[[int], None],
        locked: bool = False,
        after: Fill | None = None,
    ) -> None:
        self.stop = stop
        self._writer = writer
        self._key = key
        self._start = start
        self._unwritten = unwritten
        self._on_refused = on_refused
        self._steps: BlockSteps = BlockSteps(
            locked=locked, after=None if after is None else after._steps
        )
        self._checksums = Checksums()
        self._pieces: list[memoryview] = []
        self._cut = False

    def add(self, data: memoryview, *, lasting: bool) -> None:
        """Adds the next bytes: a copy, unless they are `lasting`, and nothing changes them."""
        if self.takes_bytes:
            self._cut = not self._unwritten.take(len(data))
            if self._cut:
                self._writer.write_short()  # which frees what waits for others; the next may fit
        if not self.takes_bytes:
            self._on_refused(len(data))
            return
        # Here the bytes are in the processor's cache; and if anything does change them, the block
        # is damaged, and never right with wrong bytes.
        self._checksums.add(data)
        if not lasting or (self._is_short and len(data) < SMALL_PIECE):
            copy = memoryview(kernels.allocate(len(data)))
            copy[:] = data
            data = copy
        self._pieces.append(data)
        gathered = sum(map(len, self._pieces))
        # Dozens of streams that gather a megabyte each would fill the room with bytes that wait
        # for more, while the disk has nothing to do.
        may_gather = self._is_short or self._unwritten.is_half_empty
        enough = WRITE_BYTES if may_gather else HURRIED_BYTES
        if gathered >= enough or len(self._pieces) == MOST_PIECES:
            self._writer.submit(partial(self._write, self._pieces))
            self._pieces = []

    def end(self, *, goes_on: bool = False) -> None:
        """Completes the block with the bytes so far; the stream `goes_on` with the next block."""
        if self._is_short and sum(map(len, self._pieces)) == self._key.size:
            done = partial(self._finish_short, self._key.size)
            self._writer.add_short(
                ShortBlock(
                    key=self._key,
                    pieces=self._pieces,
                    checksums=self._checksums,
                    locked=self._steps.locked,
                    done=done,
                )
            )
            return
        position = self._start + self._checksums.length
        next_start = self.stop if goes_on and position == self.stop else None
        self._writer.submit(partial(self._finish, self._pieces, next_start))

    @property
    def takes_bytes(self) -> bool:
        """Whether the next bytes are written, if there is room for them."""
        return not self._cut and not self._steps.refused

    @property
    def _is_short(self) -> bool:
        """Whether the block is a whole short object, which shares a file with others."""
        return self._start == 0 and self.stop == self._key.size <= SHORT_BYTES

    def _finish_short(self, count: int, admitted: bool) -> None:
        """Bytes that waited for a pack are written, or refused."""
        self._unwritten.give_back(count)
        self._steps.unlock(self._writer.cache, self._key, self._start)
        if not admitted:
            self._on_refused(count)

    def _write(self, pieces: list[memoryview]) -> None:
        """Writes the next bytes."""
        steps = self._steps
        cache = self._writer.cache
        count = sum(map(len, pieces))
        try:
            block = self._block_for(count)
            if block is not None:
                write_all(block.file, pieces)
                steps.touch(cache, self._key, self._start)
        except OSError:
            steps.give_up(cache)
            raise
        finally:
            self._unwritten.give_back(count)

    def _finish(self, pieces: list[memoryview], next_start: int | None) -> None:
        """Writes the last bytes, and completes the block."""
        steps = self._steps
        cache = self._writer.cache
        count = sum(map(len, pieces))
        try:
            block = self._block_for(count) if self._checksums.length else None
            if next_start is not None and block is not None and steps.locked:
                # before the lock of this block is freed, so that no other process comes between
                steps.next_locked = cache.lock(self._key, next_start) is Lock.HELD
            if block is not None:
                steps.cut_off(file_bytes(self._checksums.length))
                cache.commit(block, self._checksums, pieces)
        except OSError:
            steps.give_up(cache)
            raise
        finally:
            self._unwritten.give_back(count)
            steps.unlock(cache, self._key, self._start)

    def _block_for(self, count: int) -> BlockWriter | None:
        """Returns the block to write bytes to; None, and they are reported, if it is refused."""
        steps = self._steps
        if steps.block is None and not steps.refused:
            steps.begin(self._writer.cache, self._key, self._start, self.stop)
            steps.extend(self._writer.preallocation, file_bytes(self.stop - self._start))
        if steps.refused or steps.block is None:
            self._on_refused(count)
            return None
        return steps.block


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
        self._extended_to = 0

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

    def extend(self, preallocation: Preallocation, nbytes: int) -> None:
        """Asks for the space of the whole block, if it was admitted."""
        if self.block is not None and preallocation.extend(self.block.file, nbytes):
            self._extended_to = nbytes

    def cut_off(self, nbytes: int) -> None:
        """Gives back the space that the block does not need, because it ends early."""
        if self.block is not None and nbytes < self._extended_to:
            cut_off(self.block.file, nbytes)

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
