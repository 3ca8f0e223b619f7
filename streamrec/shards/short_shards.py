"""Short shards: read whole and framed at once, many local ones in one step, each of a store by one response.

What is not plainly good (compressed, damaged, cut off, empty, long), a ShardReader reads: of a store, it goes on with
the response that is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from streamrec import kernels
from streamrec.errors import StreamrecError
from streamrec.shards.opening import open_bytes
from streamrec.shards.options import ReadOptions
from streamrec.storage import ByteStream, ObjectInfo, Storage
from streamrec.tfrecord import Frames, as_spans

__all__ = ["ShortShard", "may_be_short", "open_short_shard", "read_short_shards"]

WHOLE_BYTES: Final = 64 << 10
"""A shard of a store that is no longer than this is read whole: as much as a reader's first block."""


@dataclass(frozen=True, slots=True)
class ShortShard:
    """A small shard without compression, whole.

    Args:
        info: The object.
        frames: All of its records, at least one.
    """

    info: ObjectInfo
    frames: Frames


def may_be_short(options: ReadOptions) -> bool:
    """Whether shards may be read so: with no wish that only a reader fulfils."""
    return options.block_bytes is None and not options.compression_type


async def read_short_shards(storage: Storage, paths: Sequence[str], options: ReadOptions) -> list[ShortShard | None]:
    """Each of these shards, whole; None for each that a ShardReader has to read: nothing is said of it here."""
    shards: list[ShortShard | None] = []
    for short in await storage.read_short(paths):
        frames = None if short is None else framed(short.data, options)
        shards.append(None if short is None or frames is None else ShortShard(short.info, frames))
    return shards


async def open_short_shard(storage: Storage, path: str, options: ReadOptions) -> ShortShard | ByteStream:
    """A shard by one response: whole where it is short and good, else its bytes, for a ShardReader.

    Raises:
        StorageError: It cannot be opened.
    """
    stream = await open_bytes(storage, path)
    size = stream.info.size
    if not size or size > WHOLE_BYTES:
        return stream
    came = await _read_whole(stream, size)
    frames = framed(came.data, options) if came.error is None else None
    if frames is None:
        return came
    await stream.aclose()
    return ShortShard(stream.info, frames)


async def _read_whole(stream: ByteStream, size: int) -> ReceivedBytes:
    """All bytes of a stream of known length, or those before an error."""
    data, filled = bytearray(size), 0
    try:
        with memoryview(data) as room:
            while filled < size and (count := await stream.readinto(room[filled:])):
                filled += count
    except StreamrecError as error:
        return ReceivedBytes(stream, data[:filled], error)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await stream.aclose()
        raise
    return ReceivedBytes(stream, data[:filled], None)


class ReceivedBytes:
    """A ByteStream that was read to its end, or to the error that ended it: given once more.

    Args:
        stream: What was read; closed with this one.
        data: All that it gave.
        error: What it raised after that, if anything.
    """

    def __init__(self, stream: ByteStream, data: bytearray, error: StreamrecError | None) -> None:
        self.info, self.tally = stream.info, stream.tally
        self.position = 0
        self.data, self.error = data, error
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
        """Frees the connection."""
        await self._stream.aclose()


def framed(data: bytes | bytearray, options: ReadOptions) -> Frames | None:
    """The records of a whole shard; None where it has none, or is compressed, damaged or cut off."""
    spans, end, code, _ = kernels.scan_frames(data, 0, options.verify, options.max_record_bytes)
    if code != kernels.OK or end != len(data) or not data:
        return None
    return Frames(data, as_spans(spans), 0)
