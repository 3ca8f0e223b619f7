"""CachedStream: one object's bytes in order, from blocks on the disk and from the store.

`DiskReader` reads blocks, `StoreReader` what is missing, and has it written; the stream itself only
decides which of them comes next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from streamrec import kernels
from streamrec.errors import ClosedError
from streamrec.storage.backend import ObjectInfo
from streamrec.storage.base import ByteStream
from streamrec.storage.cache.block_file import CHUNK, DamagedBlockError, OpenBlock
from streamrec.storage.cache.disk_cache import CacheMode, DiskCache, Lock
from streamrec.storage.cache.names import ObjectKey
from streamrec.storage.cache.opening import OpenCache
from streamrec.storage.cache.set_index import SetIndex
from streamrec.storage.cache.spans import Span, segment_end
from streamrec.storage.cache.writer import Fill
from streamrec.storage.faults import changed_error
from streamrec.storage.ledger import UnwrittenBytes
from streamrec.storage.statistics import Statistics, Tally
from streamrec.storage.stream import CLOSED, stop_of
from streamrec.storage.tasks import call_in_thread, finish

POLL_SECONDS: Final = (0.02, 0.3)
"""After how many seconds, at first and later on, a stream looks whether another process has fetched
the block that both need: hundreds of processes that look often would take the processor from it."""

UNLOCKED_BYTES: Final = 1 << 20
"""Fewer bytes are fetched without a lock while no other process uses the cache. One that starts is
seen at once, so that what is under way at that moment is fetched twice at most."""


BLOCKS_AHEAD: Final = 2
"""How many of the next blocks are opened in the thread that opens one: switching to a thread costs
more than opening. Each is an open file, and hundreds of streams may read."""


class OpenStore(Protocol):
    """Opens the store's own stream of an object from a byte on."""

    async def __call__(
        self,
        path: str,
        start: int,
        tally: Tally,
        *,
        end: int | None,
        version: str | None,
        size: int | None,
    ) -> ByteStream: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContext:
    """What does not change while a stream is open.

    Attributes:
        cache: The cache of this process.
        unwritten: The bytes of the run that wait to be written.
        index: The known blocks of the object's data set.
        open_store: Opens the store's own streams.
        key_of: What identifies the bytes of an answer; None if they are not cached.
        statistics: Those of the run.
        tally, disk_tally: The counters of the stream, and those of the disk.
        end, size: What the caller said: where to end, and the object's size.
    """

    cache: OpenCache
    unwritten: UnwrittenBytes
    index: SetIndex
    open_store: OpenStore
    key_of: Callable[[ObjectInfo], ObjectKey | None]
    statistics: Statistics
    tally: Tally
    disk_tally: Tally
    end: int | None
    size: int | None

    @property
    def disk(self) -> DiskCache:
        return self.cache.disk


class CachedStream:
    """A ByteStream over blocks on the disk and the store's own streams.

    Attributes:
        info, position, tally: Those of ByteStream.
        pinned: The version that the store's answers must have; None while none was delivered.
    """

    def __init__(self, context: StreamContext, info: ObjectInfo, start: int) -> None:
        self.info = info
        self.position = start
        self.tally = context.tally
        self.pinned: str | None = None
        self._context = context
        self._disk = DiskReader(context)
        self._store = StoreReader(context)
        self._closed = False
        context.statistics.add_stream(info.path, self.tally)

    async def begin_with(self, inner: ByteStream) -> None:
        """Takes an open stream of all bytes, whose answer told the version.

        If another process fetches them already, it is closed, and they are waited for.
        """
        self.info = inner.info
        key = self._context.key_of(inner.info)
        assert key is not None  # else there would be no such stream
        try:
            taken = await self._try_lock(key, self._stop)
        except BaseException:
            await self.aclose()
            await inner.aclose()
            raise
        if taken is Lock.BUSY or self._context.index.covering(key, self.position) is not None:
            await inner.aclose()
            self._unlock(key if taken is Lock.HELD else None)
        else:
            self._store.begin(inner, key, self._stop, locked=taken is Lock.HELD)

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes, writes them at the buffer's start, and returns their number.

        0 only at the end.
        """
        return await self._readinto(buffer, lasting=False)

    async def readinto_lasting(self, buffer: memoryview) -> int:
        """Does the same; the caller promises never to change the bytes, so that they are written to
        the disk from where they are.
        """
        return await self._readinto(buffer, lasting=True)

    async def _readinto(self, buffer: memoryview, *, lasting: bool) -> int:
        if self._closed:
            raise ClosedError(CLOSED.format(self.info.path))
        buffer = buffer[: max(0, self._stop - self.position)]
        count = 0
        try:
            while buffer and not count:
                if self._disk.has(self.position):
                    count = await self._disk.readinto(buffer, self.position)
                elif self._store.is_open:
                    count = await self._store.readinto(buffer, self.position, lasting=lasting)
                else:
                    await self._advance()
        except BaseException:
            await self.aclose()
            raise
        if count:
            self.position += count
            self.pinned = self.info.version
        return count

    async def aclose(self) -> None:
        """Frees the connection and the files, even if bytes are left. May be called twice."""
        if not self._closed:
            self._closed = True
            self._context.statistics.remove_stream(self.tally)
        self._disk.close()
        await self._store.aclose()

    @property
    def _stop(self) -> int:
        stop = stop_of(self.info, self._context.end)
        assert stop is not None  # what has no size is not cached
        return stop

    async def _advance(self) -> None:
        """Opens the block that has the next byte, or the store up to the next block."""
        key = self._context.key_of(self.info)
        disk = self._context.disk
        if key is None:  # the store's last answer had no version
            await self._open_store(None, self._stop, locked=False)
            return
        span = self._context.index.covering(key, self.position)
        if span is not None and disk.state is not CacheMode.OFF:
            if disk.speeds.takes_disk():
                await self._disk.open(key, span, self._stop)
                return
            await self._open_store(key, min(span.end, self._stop), locked=False)
            return
        following = self._context.index.next_start(key, self.position)
        stop = self._stop if following is None else min(following, self._stop)
        locked = await self._lock(key, stop)
        if locked is not None:
            await self._open_store(key, stop, locked=locked)

    async def _lock(self, key: ObjectKey, stop: int) -> bool | None:
        """Waits while another process fetches the next block; None if it has come.

        Returns whether this process holds the lock.
        """
        pause, longest = POLL_SECONDS
        while True:
            taken = await self._try_lock(key, stop)
            is_there = self._context.index.covering(key, self.position) is not None
            if is_there and self._context.disk.state is not CacheMode.OFF:
                self._unlock(key if taken is Lock.HELD else None)
                return None  # it was complete before its lock was freed
            if taken is not Lock.BUSY:
                return taken is Lock.HELD
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, longest)

    async def _try_lock(self, key: ObjectKey, stop: int) -> Lock:
        """Takes the lock of the next block, if it needs one, and looks what others have written."""
        disk = self._context.disk
        if disk.state is not CacheMode.ON or time.monotonic() < disk.full_until:
            return Lock.OFF
        is_short = stop - self.position < UNLOCKED_BYTES
        if is_short and not disk.has_others() and not self._is_awaited(key):
            return Lock.OFF
        return await finish(asyncio.to_thread(take_lock, self._context, key, self.position))

    def _is_awaited(self, key: ObjectKey) -> bool:
        """Whether another stream of this process fetches the rest of the object, after its other
        blocks.
        """
        return self.position > 0 and self._context.disk.is_locked(key, self.position)

    async def _open_store(self, key: ObjectKey | None, stop: int, *, locked: bool) -> None:
        """Opens the store from here to `stop`; the version of its answer counts from now on."""
        end = self._context.end if stop == self._stop else stop
        began = time.monotonic()
        held = key if locked else None
        try:
            inner = await self._context.open_store(
                self.info.path,
                self.position,
                self._context.tally,
                end=end,
                version=self.pinned,
                size=self._context.size,
            )
        except BaseException:
            self._unlock(held)
            raise
        self._context.disk.speeds.store.record(0, time.monotonic() - began)
        found = self._context.key_of(inner.info)
        if found != key:
            # The listing is older than the object, or its versions are spelled differently.
            size = self.info.size if inner.info.size is None else inner.info.size
            self.info = replace(inner.info, size=size)
            self._unlock(held)
            held = None
        self._store.begin(inner, found, min(stop, self._stop), locked=held is not None)

    def _unlock(self, key: ObjectKey | None) -> None:
        """Frees the lock of the next block, if it is held."""
        if key is not None:
            cache = self._context.cache
            cache.writer.submit(partial(cache.disk.unlock, key, self.position))


def take_lock(context: StreamContext, key: ObjectKey, position: int) -> Lock:
    """Takes the lock of a block, and learns what others have written until then; in a thread."""
    taken = context.disk.lock(key, position)
    context.disk.follow(key)
    return taken


def open_blocks(disk: DiskCache, key: ObjectKey, spans: Sequence[Span]) -> dict[Span, OpenBlock]:
    """Opens a block and, unless that fails, the next ones of the object; in a thread."""
    first, *others = spans
    block = disk.open_block(key, first)
    if block is None:
        return {}
    opened = {first: block}
    for span in others:
        ahead = disk.open_ahead(key, span)
        if ahead is None:
            break
        opened[span] = ahead
    return opened


def close_blocks(blocks: dict[Span, OpenBlock]) -> None:
    """Closes blocks, and forgets them."""
    while blocks:
        blocks.popitem()[1].close()


class DiskReader:
    """Reads blocks from the disk, and checks them."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._key: ObjectKey | None = None
        self._span = Span(0, 0)
        self._block: OpenBlock | None = None
        self._ahead: dict[Span, OpenBlock] = {}
        self._rest = memoryview(b"")
        self._rest_at = 0

    def has(self, position: int) -> bool:
        """Whether the open block has this byte."""
        return self._block is not None and self._span.start <= position < self._span.end

    async def open(self, key: ObjectKey, span: Span, stop: int) -> None:
        """Opens a block, and the next ones that are there up to `stop`.

        If the block is gone or damaged, `has` says so, and so does the index.
        """
        self._close_block()
        began = time.monotonic()
        if span not in self._ahead or key != self._key:
            close_blocks(self._ahead)
            spans = self._next_spans(key, span, stop)
            self._ahead = await call_in_thread(
                partial(open_blocks, self._context.disk, key, spans), undo=close_blocks
            )
        self._block = self._ahead.pop(span, None)
        self._key = key
        self._span = span
        if self._block is not None:
            seconds = time.monotonic() - began
            tally = self._context.disk_tally
            tally.request()
            tally.first_byte(seconds)
            self._context.disk.speeds.disk.record(0, seconds)

    async def readinto(self, buffer: memoryview, position: int) -> int:
        """Reads the next bytes of the block.

        0, or what was read before, if it is damaged, and no longer open.
        """
        kept = self._take_rest(buffer, position)
        buffer = buffer[kept:]
        position += kept
        if not buffer or position == self._span.end:
            self._count(kept, 0.0)
            return kept
        count = 0
        seconds = 0.0
        assert self._key is not None
        try:
            count, seconds = await self._read(buffer, position)
            self._context.disk.speeds.disk.record(count, seconds)
        except DamagedBlockError as damage:
            self._context.disk.drop(self._key, self._span, damage)
            self._close_block()
        except OSError as error:
            self._context.disk.give_up_block(self._key, self._span, error)
            self._close_block()
        if kept + count:
            self._count(kept + count, seconds)
        return kept + count

    def close(self) -> None:
        """Closes all blocks. May be called twice."""
        self._close_block()
        close_blocks(self._ahead)

    def _next_spans(self, key: ObjectKey, span: Span, stop: int) -> list[Span]:
        """Returns a block, and the known ones after it that are opened with it."""
        spans = [span]
        if self._context.disk.speeds.disk_is_slower:
            return spans  # it is a single one that measures the disk
        while len(spans) <= BLOCKS_AHEAD and spans[-1].end < stop:
            following = self._context.index.covering(key, spans[-1].end)
            if following is None:
                break
            spans.append(following)
        return spans

    def _take_rest(self, buffer: memoryview, position: int) -> int:
        """Copies what an earlier call read ahead, and checked; returns the number of bytes."""
        if position < self._rest_at:
            return 0
        rest = self._rest[position - self._rest_at :][: len(buffer)]
        buffer[: len(rest)] = rest
        return len(rest)

    def _close_block(self) -> None:
        block, self._block = self._block, None
        self._rest = memoryview(b"")
        if block is not None:
            block.close()

    async def _read(self, buffer: memoryview, position: int) -> tuple[int, float]:
        """Reads whole chunks into the buffer, and the one that it ends in next to it.

        Returns the number of bytes, and the seconds.
        """
        assert self._block is not None
        offset = position - self._span.start
        skip = offset % CHUNK
        left = self._span.length - offset
        whole = 0
        if not skip:
            whole = left if left <= len(buffer) else len(buffer) // CHUNK * CHUNK
        buffers = [buffer[:whole]] if whole else []
        rest = min(CHUNK, left - whole + skip) if whole < min(left, len(buffer)) else 0
        chunk = memoryview(kernels.allocate(rest))
        if rest:
            buffers.append(chunk)
        await asyncio.sleep(0)  # other streams have a turn, too
        began = time.monotonic()
        if not self._block.read(buffers, offset - skip, wait=False):
            await finish(asyncio.to_thread(self._block.read, buffers, offset - skip))
        seconds = time.monotonic() - began
        self._rest = chunk
        self._rest_at = position - skip + whole
        count = min(len(buffer) - whole, rest - skip) if rest else 0
        buffer[whole : whole + count] = chunk[skip : skip + count]
        return whole + count, seconds

    def _count(self, nbytes: int, seconds: float) -> None:
        self._context.disk_tally.block(nbytes, seconds, 0.0)


class StoreReader:
    """Reads what is missing from the store, and has it written."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._inner: ByteStream | None = None
        self._key: ObjectKey | None = None
        self._stop = 0
        self._fill: Fill | None = None
        self._passes_until = 0

    @property
    def is_open(self) -> bool:
        return self._inner is not None

    def begin(self, inner: ByteStream, key: ObjectKey | None, stop: int, *, locked: bool) -> None:
        """Takes a stream up to `stop`; without a key, its bytes are not cached."""
        self._inner = inner
        self._key = key
        self._stop = stop
        self._passes_until = 0
        cache = self._context.cache
        if key is not None and self._context.index.other_versions(key):
            cache.writer.submit(partial(cache.disk.remove_superseded, key))
        if locked:
            self._fill = self._begin_fill(inner.position, locked=True)

    async def readinto(self, buffer: memoryview, position: int, *, lasting: bool) -> int:
        """Reads the next bytes; 0 at the stop, where the stream is closed."""
        assert self._inner is not None
        began = time.monotonic()
        count = await self._inner.readinto(buffer[: self._stop - position])
        self._context.disk.speeds.store.record(count, time.monotonic() - began)
        if not count:
            if position < self._stop:
                raise changed_error(self._inner.info.path, position)
            await self.aclose()
            return 0
        self._keep(buffer[:count], position, lasting=lasting)
        return count

    async def aclose(self) -> None:
        """Closes the stream, and completes the block that it was filling. May be called twice."""
        inner, self._inner = self._inner, None
        fill, self._fill = self._fill, None
        if fill is not None:
            fill.end()
        if inner is not None:
            await inner.aclose()

    def _keep(self, data: memoryview, position: int, *, lasting: bool) -> None:
        """Gives bytes to the block that they are in, if it is admitted."""
        while data:
            stop = min(segment_end(position), self._stop)
            piece = data[: stop - position]
            if self._fill is None and position >= self._passes_until:
                self._fill = self._begin_fill(position)
            if self._fill is None:
                self._passes_until = stop
                self._refuse(len(piece))
            else:
                self._fill.add(piece, lasting=lasting)
            position += len(piece)
            data = data[len(piece) :]
            if position == stop and self._fill is not None:
                self._end_fill(position)

    def _end_fill(self, position: int) -> None:
        """Ends a full block, and begins the next one, which takes over the lock."""
        fill, self._fill = self._fill, None
        assert fill is not None
        goes_on = position < self._stop
        fill.end(goes_on=goes_on)
        if goes_on:
            self._fill = self._begin_fill(position, after=fill)

    def _begin_fill(
        self, position: int, *, locked: bool = False, after: Fill | None = None
    ) -> Fill | None:
        """Begins a block; None if it is known that it would not be admitted."""
        if self._key is None:
            return None
        disk = self._context.disk
        closed = disk.state is not CacheMode.ON or time.monotonic() < disk.full_until
        if not locked and after is None and (closed or disk.speeds.disk_is_slower):
            return None
        return Fill(
            self._context.cache.writer,
            self._key,
            position,
            min(segment_end(position), self._stop),
            unwritten=self._context.unwritten,
            on_refused=partial(self._refuse_later, asyncio.get_running_loop()),
            locked=locked,
            after=after,
        )

    def _refuse_later(self, loop: asyncio.AbstractEventLoop, nbytes: int) -> None:
        """Counts bytes in the loop's thread, which alone may count."""
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._refuse, nbytes)

    def _refuse(self, nbytes: int) -> None:
        self._context.disk_tally.count("bytes_not_admitted", nbytes)
