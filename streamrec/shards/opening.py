"""Opens one shard, whole or a byte range of it, up to the first byte of its first record.

The plain bytes of a compressed shard are a stream: storage × Inflater. Inflating runs in a worker
thread.

Short shards are read whole and framed at once: many local ones in one step, a store's by one
response each. A ShardReader reads all other shards (compressed, damaged, cut off, empty, long); it
continues a store's open response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import anyio

from streamrec import kernels, shards
from streamrec.display import display_name
from streamrec.errors import StorageError, StreamrecError
from streamrec.shards.byte_ranges import RangeStream, begin_range
from streamrec.shards.opened_check import check_opened
from streamrec.shards.options import Expected, ReadOptions, ShardPlace, ShardRange, size_in
from streamrec.storage import (
    ByteStream,
    ObjectInfo,
    ShortObject,
    Storage,
    Storages,
    directory_advice,
    read_full,
)
from streamrec.storage.tasks import finish
from streamrec.tfrecord import (
    DETECT_BYTES,
    CompressionType,
    Frames,
    Inflater,
    as_spans,
    check_compression_type,
    detect_compression,
)

INPUT_BYTES = 1 << 20
"""Compressed bytes that are received at a time, after a few smaller steps for a quick first record.

This many keep a thread busy for some milliseconds.
"""

WHOLE_BYTES = 64 << 10
"""A store's shard up to this size is read whole. It is the size of a reader's first block."""


class InflatedStream:
    """The plain bytes of a compressed stream, but the first `skip`.

    The `head` of the stream was read already.
    """

    def __init__(self, stream: ByteStream, inflater: Inflater, head: bytes, skip: int) -> None:
        self.info = stream.info
        self.tally = stream.tally
        self._stream = stream
        self._input = memoryview(kernels.allocate(64 << 10))
        self._received = 0
        self._inflater = inflater
        self._inflater.feed(head)
        self._skip = skip
        self._ended = False

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for plain bytes, and writes them to the buffer.

        Returns their number, 0 at the end.
        """
        while not self._ended:
            if self._inflater.needs_input:
                await self._feed()
                continue
            filled = await self._inflate(buffer)
            if filled > self._skip:
                if self._skip:
                    buffer[: filled - self._skip] = bytes(buffer[self._skip : filled])
                    filled -= self._skip
                    self._skip = 0
                return filled
            self._skip -= filled
        self._inflater.close()
        return 0

    async def aclose(self) -> None:
        """Closes the compressed stream, even if bytes are left."""
        await self._stream.aclose()

    async def _inflate(self, buffer: memoryview) -> int:
        """Inflates into a buffer: in a thread, unless that would take longer than the work."""
        if len(buffer) <= 64 << 10:  # inflating this takes less time than calling a thread
            return self._inflater.read_into(buffer)
        return await finish(
            asyncio.get_running_loop().run_in_executor(None, self._inflater.read_into, buffer)
        )

    async def _feed(self) -> None:
        """Gives the inflater the next compressed bytes, when it has used those before."""
        if self._received == len(self._input) < INPUT_BYTES:
            self._input = memoryview(kernels.allocate(4 * self._received))
        self._received = await self._stream.readinto(self._input)
        if self._received:
            self._inflater.feed(self._input[: self._received])
        else:
            self._ended = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An open shard.

    Args:
        source: Its plain bytes, after `head`; the caller closes it.
        place: The place of the first record, which begins with `head`.
        head: Plain bytes that were read already; None if no record begins in a byte range.
        end: The end of a byte range.
    """

    source: ByteStream | RangeStream | InflatedStream
    compression_type: CompressionType
    place: ShardPlace
    head: bytes | bytearray | None = b""
    end: int | None = None


async def open_whole(
    storage: Storage,
    path: str,
    options: ReadOptions,
    place: ShardPlace,
    stream: ByteStream | None = None,
    expected: Expected | None = None,
) -> Opened:
    """Opens a shard from a place to its end.

    Continues its `stream` of all bytes, if that is open already.

    Raises:
        ValueError: The place is within the shard, and the compression is not given.
        ObjectChangedError, ManifestError: The object is not the expected one.
    """
    named = check_compression_type(options.compression_type)
    start = place.offset if named == "" else 0
    stream = stream or await open_bytes(storage, path, start, place.version, size_in(expected))
    try:
        if expected is not None:
            await check_opened(storage, expected, stream.info)
        # A shard that is known to be plain needs no first bytes: its reader takes them all.
        room = memoryview(bytearray(0 if named == "" else DETECT_BYTES))
        head = bytes(room[: await read_full(stream, room)])
        kind = detect_compression(head) if named is None else named
        if kind:
            # The offset is that of a plain byte: all before it are inflated, and dropped.
            inflated = InflatedStream(stream, Inflater(kind, path), head, place.offset)
            return Opened(source=inflated, compression_type=kind, place=place)
        if named is None and place.offset:
            raise ValueError(
                f"{display_name(path)}: reading from the middle needs compression_type; '' for none"
            )
        return Opened(source=stream, compression_type=kind, place=place, head=head)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await stream.aclose()
        raise


async def open_range(
    storage: Storage,
    path: str,
    options: ReadOptions,
    byte_range: ShardRange,
    place: ShardPlace,
    expected: Expected | None = None,
) -> Opened:
    """Opens a byte range of a shard at its first record; or at `place`, if its offset is not 0.

    Raises:
        ValueError: The shard is compressed.
        ObjectChangedError, ManifestError: The object is not the expected one.
    """
    kind = check_compression_type(options.compression_type)
    if kind is None:
        kind = detect_compression(await storage.read_range(path, 0, DETECT_BYTES))
    if kind:
        raise ValueError(
            f"{display_name(path)}: this shard is compressed ({kind}), so reading cannot begin in "
            "the middle: read it without start and end, or write it uncompressed, or as several "
            "shards"
        )
    stream, position, head = await begin_range(
        storage,
        path,
        byte_range,
        place=place,
        max_record_bytes=options.max_record_bytes,
        expected=expected,
    )
    at = ShardPlace(position, place.record, stream.info.version)
    return Opened(source=stream, compression_type="", place=at, head=head, end=byte_range.end)


async def open_bytes(
    storage: Storage,
    path: str,
    start: int = 0,
    version: str | None = None,
    size: int | None = None,
) -> ByteStream:
    """Opens a shard's bytes, of which a listing or a manifest may know the size.

    The error for a directory says what to write instead.
    """
    try:
        stream = await storage.stream(path, start, None, version, size=size)
    except StorageError as error:
        await shards.refuse_directory(storage, path, error)
        raise
    if path.endswith("/") and stream.info.size == 0:
        await stream.aclose()
        marker = StorageError(directory_advice(path), path)
        await shards.refuse_directory(storage, path, marker)
        raise marker
    return stream


@dataclass(frozen=True, slots=True)
class ShortShard:
    """A small shard without compression, whole: all of its records, at least one."""

    info: ObjectInfo
    frames: Frames


async def read_short_shards(
    storages: Storages, paths: Sequence[str], options: ReadOptions
) -> list[ShortShard | None]:
    """Reads these shards whole, if their store reads many at a time.

    None for each that must be opened alone.
    """
    objects: Sequence[ShortObject | None] = [None] * len(paths)
    with suppress(StreamrecError):  # opening the shard reports it
        # Looked at first: a store that reads none would look up each name twice.
        store = await storages.at(paths[0]) if paths else None
        if store is not None and store.reads_short:
            stores = {await storages.at(path) for path in paths}
            objects = await store.read_short(paths) if stores == {store} else objects
    shards: list[ShortShard | None] = []
    for short in objects:
        frames = None if short is None else frame_whole(short.data, options)
        shards.append(None if short is None or frames is None else ShortShard(short.info, frames))
    return shards


async def open_short_shard(
    storage: Storage, path: str, options: ReadOptions, expected: Expected | None = None
) -> ShortShard | ByteStream:
    """Opens a shard by one response: whole if it is short and good.

    Else it returns the shard's bytes, for a ShardReader. A whole one is the expected one.
    """
    stream = await open_bytes(storage, path, size=size_in(expected))
    size = stream.info.size
    if not size or size > WHOLE_BYTES:
        return stream
    received = await _read_whole(stream, size)
    frames = frame_whole(received.data, options) if received.error is None else None
    if frames is None:
        return received
    await stream.aclose()
    if expected is not None:
        await check_opened(storage, expected, stream.info)
    return ShortShard(stream.info, frames)


async def _read_whole(stream: ByteStream, size: int) -> ReceivedBytes:
    """All bytes of a stream of known length, or those before an error."""
    data = bytearray(size)
    filled = 0
    failure = None
    try:
        with memoryview(data) as room:
            while filled < size and (count := await stream.readinto(room[filled:])):
                filled += count
    except StreamrecError as error:
        failure = error
    except BaseException:
        with anyio.CancelScope(shield=True):
            await stream.aclose()
        raise
    return ReceivedBytes(stream, data[:filled], failure)


class ReceivedBytes:
    """A ByteStream that was read to its end or to an error.

    It gives the bytes again, and then the error.
    """

    def __init__(self, stream: ByteStream, data: bytearray, error: StreamrecError | None) -> None:
        self.info = stream.info
        self.tally = stream.tally
        self.position = 0
        self.data = data
        self.error = error
        self._stream = stream

    async def readinto(self, buffer: memoryview) -> int:
        """The next bytes; after them the error, or 0."""
        data = self.data[self.position : self.position + len(buffer)]
        if not data and self.error is not None and buffer:
            raise self.error
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)

    async def aclose(self) -> None:
        """Closes the stream that the bytes came from."""
        await self._stream.aclose()


def frame_whole(data: bytes | bytearray, options: ReadOptions) -> Frames | None:
    """The records of a whole shard; None if it is empty, compressed, damaged or cut off."""
    spans, end, code, _ = kernels.scan_frames(data, 0, options.verify, options.max_record_bytes)
    if code != kernels.OK or end != len(data) or not data:
        return None
    return Frames(data, as_spans(spans), 0)
