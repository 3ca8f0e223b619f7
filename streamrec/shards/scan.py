"""The lengths of one shard's records: from all its bytes, from its headers, or from an `.idx` file.

The payloads of a local shard are skipped. If records are short, reading all bytes is faster than a
call for each header: then READ_BYTES are read at a time.

DALI's and vahidk's `tfrecord2idx` write `.idx` and `.index` files: a line "offset size" for each
record, in the order of the shard. Offset and size are those of the frame, which has 16 bytes more
than the payload.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import numpy as np

from streamrec import kernels
from streamrec.errors import (
    CorruptRecordError,
    ManifestError,
    ObjectChangedError,
    StorageError,
    StreamrecError,
    TruncatedShardError,
)
from streamrec.shards.cursor import ShardCursor
from streamrec.shards.directories import stat_shard
from streamrec.shards.index import IndexedShard, Numbers
from streamrec.shards.manifest import ShardInfo, add_mark
from streamrec.shards.options import LONG_BYTES, ReadOptions
from streamrec.storage import ByteStream, ObjectInfo, Storage
from streamrec.tfrecord import (
    BLOCK_RECORDS,
    DETECT_BYTES,
    FOOTER_BYTES,
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    CompressionType,
    Framer,
    LengthPacker,
    PackedLengths,
    as_spans,
    detect_compression,
    is_record_header,
    unpack,
)

READ_BYTES: Final = 1 << 20
SKIP_BYTES: Final = 16 << 10
"""Records that are longer than this on average are skipped one by one.

A call costs as much as reading this.
"""


def lengths_of_file(path: Path, url: str) -> PackedLengths:
    """Reads the headers of an uncompressed shard, whose name in errors is `url`."""
    packer = LengthPacker()
    position = records = 0
    skipped: list[int] = []
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        # Short records come by the block, READ_BYTES at a time. Once records are long on average,
        # their headers are read alone, each by one call.
        while position < size:
            skips = bool(records) and position > SKIP_BYTES * records
            data = os.pread(file.fileno(), HEADER_BYTES if skips else READ_BYTES, position)
            packed, end, code, wants = kernels.scan_frames(data, 0, False, MAX_RECORD_BYTES)
            spans = as_spans(packed)
            if len(spans):
                packer.add(np.array(skipped + (spans[:, 1] - spans[:, 0]).tolist(), np.int64))
                skipped = []
            elif code == kernels.OK and wants > HEADER_BYTES and position + wants <= size:
                skipped.append(wants - (HEADER_BYTES + 4))
                end = wants
            else:
                raise _damage(data, position, records, url, size)
            position += end
            records += max(len(spans), 1)
            if len(skipped) >= SKIP_BYTES:
                packer.add(np.array(skipped, np.int64))
                skipped = []
    packer.add(np.array(skipped, np.int64))
    return packer.finish()


def _damage(
    data: bytes, position: int, record: int, url: str, size: int
) -> CorruptRecordError | TruncatedShardError:
    """The framer's error for bytes that do not begin with a whole record."""
    framer = Framer(verify=False, path=url, position=position, record=record, size=size)
    try:
        framer.feed(data)
        framer.close()
    except (CorruptRecordError, TruncatedShardError) as error:
        return error
    return TruncatedShardError(
        "the shard ends within a record: it was cut off; write it again", url, position, record
    )


def lengths_of_idx(data: bytes, path: str, shard: str, size: int) -> PackedLengths:
    r"""The lengths of the records of a shard of `size` bytes, from its `.idx` file.

    Examples:
        >>> packed = lengths_of_idx(b"0 116\n116 117\n", "a.idx", "a", 233)
        >>> packed.records, packed.end
        (2, 233)
    """
    try:
        rows = np.array(data.split(), np.int64).reshape(-1, 2)
    except (ValueError, OverflowError) as error:
        raise ManifestError(
            f"{path}: this is not a file of tfrecord2idx, which has two numbers in each line"
        ) from error
    # Frames must follow each other without a gap, so the lengths alone give all places.
    ends = np.concatenate([[0], np.cumsum(rows[:, 1])])
    wrong = np.flatnonzero(
        (rows[:, 0] != ends[:-1]) | (rows[:, 1] < HEADER_BYTES + FOOTER_BYTES) | (rows[:, 1] > size)
    )
    if len(wrong):
        line = int(wrong[0])
        raise ManifestError(
            f"{path}, line {line + 1}: a frame at byte {rows[line, 0]:,} of {rows[line, 1]:,} "
            f"bytes, and the one before ends at byte {ends[line]:,}: make this file again with "
            "tfrecord2idx, or index the shard itself"
        )
    if ends[-1] != size:
        raise ManifestError(
            f"{path}: the last record ends at byte {ends[-1]:,}, and {shard} has {size:,} bytes: "
            "this is the file of another shard, or the shard was written since; make it again, "
            "or index the shard itself"
        )
    packer = LengthPacker()
    packer.add(rows[:, 1] - (HEADER_BYTES + FOOTER_BYTES))
    return packer.finish()


class SummedStream:
    """A ByteStream that forwards another one, counts its bytes and computes their CRC32C."""

    def __init__(self, stream: ByteStream) -> None:
        self.info = stream.info
        self.tally = stream.tally
        self.position = self.crc32c = 0
        self._stream = stream

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes, and adds them to `position` and `crc32c`; 0 at the end."""
        count = await self._stream.readinto(buffer)
        self.crc32c = kernels.crc32c(buffer[:count], self.crc32c)
        self.position += count
        return count

    async def aclose(self) -> None:
        """Closes the other stream; the sums stay."""
        await self._stream.aclose()


class Scan(NamedTuple):
    """The result of reading a whole shard.

    `info` has the number of records before the first `damage`, if the shard was read to its end in
    spite of it.
    """

    info: ShardInfo
    compression_type: CompressionType
    damage: CorruptRecordError | TruncatedShardError | None


async def scan(
    storage: Storage,
    stream: ByteStream,
    compression_type: str | None = None,
    *,
    verify: bool = False,
    to_end: bool = False,
    lengths: LengthPacker | None = None,
) -> Scan:
    """Reads a whole shard once, for its entry in a manifest or an index.

    Records are counted and dropped.

    Args:
        stream: All of the shard's bytes; closed when they are read.
        verify: Whether the CRC32C of each record's payload is checked.
        to_end: Whether bytes after damage are read and summed too, and damage is not an error.
        lengths: Collects the lengths of the records; None if they are not needed.
    """
    path = stream.info.path
    summed = SummedStream(stream)
    options = ReadOptions(compression_type=compression_type, verify=verify, long_bytes=LONG_BYTES)
    cursor = await ShardCursor.open(storage, path, options, stream=summed)
    records = 0
    damage = None
    marks: list[tuple[int, int]] = []

    def take(offset: int, found: Numbers) -> None:
        nonlocal records
        add_mark(marks, records, offset)
        records += len(found)
        if lengths is not None:
            lengths.add(found)

    try:
        while True:
            # Long records come before the frames that follow them, so marks are in order.
            frames = await cursor.next()
            for long in cursor.take_long_records():
                take(long.offset, np.array([long.length]))
            if frames is None:
                break
            take(frames.offset(0), frames.lengths)
    except (CorruptRecordError, TruncatedShardError) as error:
        if not to_end:
            raise
        damage = error
        records = cursor.place.record
        # The sum of all bytes tells a copy that is damaged from a shard that was written so.
        rest = memoryview(bytearray(READ_BYTES))
        while await summed.readinto(rest):
            pass
    finally:
        await cursor.aclose()
    known_marks = () if cursor.compression_type else tuple(marks)
    info = ShardInfo(
        path,
        records,
        bytes=summed.position,
        crc32c=summed.crc32c,
        marks=known_marks,
        version=stream.info.version,
    )
    return Scan(info, cursor.compression_type, damage)


async def scan_stream(storage: Storage, path: str, size: int | None = None) -> IndexedShard:
    """Indexes a shard from all its bytes, of which a listing may know the number.

    A compressed one is a ManifestError.
    """
    packer = LengthPacker()
    try:
        stream = await storage.stream(path, size=size)
        info = (await scan(storage, stream, "", lengths=packer)).info
    except StreamrecError as error:
        await _refuse_compressed(storage, path, error)
        raise
    return IndexedShard(info, packer.finish())


async def scan_file(storage: Storage, path: str, local: Path) -> IndexedShard:
    """Indexes a local shard from its headers.

    An ObjectChangedError if the file was written meanwhile.
    """
    before = await stat_shard(storage, path)
    try:
        lengths = await anyio.to_thread.run_sync(partial(lengths_of_file, local, path))
    except StreamrecError as error:
        await _refuse_compressed(storage, path, error)
        raise
    except OSError as error:
        raise StorageError(f"this file cannot be read ({error})", path) from error
    if await storage.stat(path) != before:
        raise ObjectChangedError(
            "this shard was written while it was indexed: index it again", path
        )
    return _make_index(before, lengths)


async def scan_idx(storage: Storage, path: str, idx_storage: Storage, idx: str) -> IndexedShard:
    """Indexes a shard from a file of tfrecord2idx.

    The shard itself gives its size and its last record's header.
    """
    idx_info = await idx_storage.stat(idx)
    data = await idx_storage.read_range(idx, 0, idx_info.size or 0, idx_info.version)
    info = await stat_shard(storage, path)
    lengths = await anyio.to_thread.run_sync(lengths_of_idx, data, idx, path, info.size or 0)
    if lengths.records:
        last = await anyio.to_thread.run_sync(_last_length, lengths)
        start = lengths.end - last - HEADER_BYTES - 4
        header = await storage.read_range(path, start, start + HEADER_BYTES, info.version)
        if not is_record_header(header) or int.from_bytes(header[:8], "little") != last:
            raise ManifestError(
                f"{idx}: {path} has no record of {last:,} bytes at byte {start:,}: this is the "
                "file of another shard, or the shard is compressed or was written since; make it "
                "again, or index the shard itself"
            )
    return _make_index(info, lengths)


def _make_index(info: ObjectInfo, lengths: PackedLengths) -> IndexedShard:
    shard = ShardInfo(info.path, lengths.records, info.size or 0, None, version=info.version)
    return IndexedShard(shard, lengths)


def _last_length(lengths: PackedLengths) -> int:
    count = (lengths.records - 1) % BLOCK_RECORDS + 1
    block = lengths.blocks[-1:]
    size = (count * int(block["width"][0]) + 7) // 8
    data = lengths.data[len(lengths.data) - size :]
    return int(unpack([data], block, np.array([count]))[-1])


async def _refuse_compressed(storage: Storage, path: str, error: StreamrecError) -> None:
    """Raises a ManifestError if a shard's first bytes look damaged because they are compressed."""
    if isinstance(error, CorruptRecordError) and not error.offset:
        kind = detect_compression(await storage.read_range(path, 0, DETECT_BYTES))
        if kind:
            raise ManifestError(
                f"{path}: this shard is compressed ({kind}), so its records cannot be read by "
                "number, and it has no index: write the data set again without compression: "
                "streamrec reshard --compression none"
            ) from error
