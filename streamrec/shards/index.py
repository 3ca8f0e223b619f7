"""An index: what a manifest says of a data set, and the length of each record. Pure; others read and write it.

One object, all numbers little-endian:

    head      8 bytes     MAGIC
    lengths               the packed lengths of all records, shard after shard (see `tfrecord.lengths`)
    manifest  JSON        as in `manifest.py`, with the version of each object, without marks
    blocks                the table of blocks of all shards, 21 bytes for each 1,024 records
    foot      44 bytes    FOOT: version of the format, sizes of `lengths`, `manifest` and `blocks`, CRC32C of the last
                          two, CRC32C of the foot before it, MAGIC

- Opening an index takes its end: the foot, the manifest and the table of blocks: about 110 bytes a shard and 0.02 bytes
  a record. 10^9 records are 21 MB. The lengths are read by ranges, block by block; each block has its CRC32C.
- `digest` is that of names, numbers of records, sizes and the table of blocks (which holds a CRC32C of each block of
  lengths). Copies of a data set have the same digest, wherever they are.
- A `version` that a reader does not know is refused.
- It is written shard after shard, so that no more is held than the tables and what is on its way.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.display import display_repr
from streamrec.errors import ManifestError
from streamrec.shards.manifest import FRAME_BYTES, Manifest, ShardInfo, add_mark
from streamrec.shards.places import location_of, relative
from streamrec.tfrecord import (
    BLOCK,
    BLOCK_RECORDS,
    MAX_BITS,
    PackedLengths,
    packed_sizes,
)

__all__ = [
    "FOOT_BYTES",
    "MAGIC",
    "Foot",
    "Index",
    "IndexEncoder",
    "IndexedShard",
    "encode_end",
    "encode_index",
    "read_end",
    "read_foot",
]

MAGIC: Final = b"srec-idx"

FORMAT: Final = "streamrec index"

VERSION: Final = 1

FOOT: Final = struct.Struct("<IQQQI")

FOOT_CRC: Final = struct.Struct("<I")

FOOT_BYTES: Final = FOOT.size + FOOT_CRC.size + len(MAGIC)

Numbers = npt.NDArray[np.int64]


@display_repr
@dataclass(frozen=True, eq=False)
class Index(Manifest):
    """What is known of a data set without reading the records' lengths.

    Attributes:
        path: The URL of the index.
        pattern: The URL of the shards, with `{shard}` where their number goes; or of the first one.
        compression_type: "": an index is of shards that are not compressed.
        shards: The shards, in order, with their full URLs.
        blocks: The table of blocks of all shards, one after the other: [n] of `tfrecord.lengths.BLOCK`.
        version: What the store calls this version of the index; None where it does not tell.
        digest: 32 hexadecimal digits that identify this data set; the same for its copies.
    """

    blocks: npt.NDArray[Any]
    version: str | None = None

    def __len__(self) -> int:
        """How many records there are."""
        return int(self.first_records[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def manifest(self) -> Manifest:
        """The same as a manifest; the marks of a shard are where its blocks begin."""
        shards = tuple(replace(shard, marks=self._marks(number)) for number, shard in enumerate(self.shards))
        return Manifest(self.path, self.pattern, self.compression_type, shards)

    def _marks(self, number: int) -> tuple[tuple[int, int], ...]:
        first, last = self.first_blocks[number : number + 2].tolist()
        marks: list[tuple[int, int]] = []
        for block, byte in enumerate(self.block_offsets[first:last].tolist()):
            add_mark(marks, block * BLOCK_RECORDS, byte)
        return tuple(marks)

    @cached_property
    def first_records(self) -> Numbers:
        """The number of each shard's first record, [shards + 1]; the last one is the number of records."""
        return cumulative([shard.records for shard in self.shards])

    @cached_property
    def first_blocks(self) -> Numbers:
        """The number of each shard's first block, [shards + 1]."""
        return cumulative([-(-shard.records // BLOCK_RECORDS) for shard in self.shards])

    @cached_property
    def block_counts(self) -> Numbers:
        """How many records each block holds, [blocks]."""
        counts = np.full(len(self.blocks), BLOCK_RECORDS, np.int64)
        records = np.diff(self.first_records)
        filled = records > 0
        counts[self.first_blocks[1:][filled] - 1] = (records[filled] - 1) % BLOCK_RECORDS + 1
        return counts

    @cached_property
    def block_places(self) -> Numbers:
        """Where each packed block begins in the index, in bytes, [blocks + 1]; the last one is where they end."""
        return cumulative(packed_sizes(self.blocks, self.block_counts)) + len(MAGIC)

    @cached_property
    def block_offsets(self) -> Numbers:
        """Where the frame of each block's first record begins in its shard, in bytes, [blocks]."""
        offsets = np.zeros(len(self.blocks), np.int64)
        offsets[1:] = self.blocks["end"][:-1]
        starts = self.first_blocks[:-1]
        offsets[starts[starts < len(offsets)]] = 0
        return offsets

    @property
    def block_bytes(self) -> Numbers:
        """Bytes of the frames of each block's records, [blocks]."""
        sizes: Numbers = self.blocks["end"] - self.block_offsets
        return sizes

    @cached_property
    def digest(self) -> str:
        """See the attributes."""
        names = [[relative(self.path, shard.path), shard.records, shard.bytes] for shard in self.shards]
        state = hashlib.sha256(json.dumps(names).encode())
        state.update(self.blocks.tobytes())
        return state.hexdigest()[:32]

    def is_sound(self, lengths: int) -> bool:
        """Whether the table of blocks is that of these shards, and of that many bytes of packed lengths."""
        if self.first_blocks[-1] != len(self.blocks):
            return False
        if (self.blocks["width"] > MAX_BITS).any() or (self.blocks["end"] < 0).any():
            return False
        sizes = self.block_bytes
        filled = np.diff(self.first_blocks) > 0
        ends = self.blocks["end"][self.first_blocks[1:][filled] - 1]
        frames = self.block_counts * FRAME_BYTES
        fits = (self.blocks["base"] >= 0) & (self.blocks["base"] <= (sizes - frames) // self.block_counts)
        placed = self.block_places[-1] == len(MAGIC) + lengths
        return placed and bool(fits.all()) and ends.tolist() == [shard.bytes for shard in self.shards if shard.records]

    def shard_of(self, records: Numbers) -> Numbers:
        """The number of the shard that holds each of these records."""
        return np.searchsorted(self.first_records, records, "right") - 1

    def block_of(self, records: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Of each of these records: its shard, its block, and its place in the block."""
        shards = self.shard_of(records)
        within = records - self.first_records[shards]
        return shards, self.first_blocks[shards] + within // BLOCK_RECORDS, within % BLOCK_RECORDS


class Foot(NamedTuple):
    """The sizes of the parts of an index, in bytes.

    Attributes:
        lengths: The packed lengths.
        manifest: The manifest.
        blocks: The table of blocks.
        crc: The CRC32C of manifest and table.
    """

    lengths: int
    manifest: int
    blocks: int
    crc: int

    @property
    def end_bytes(self) -> int:
        """Bytes of all that is read to open it."""
        return self.manifest + self.blocks + FOOT_BYTES


def encode_end(index: Index) -> bytes:
    """What follows the packed lengths.

    Examples:
        >>> shard = ShardInfo("s3://b/x/train-0", records=0, bytes=0, crc32c=0)
        >>> index = Index("s3://b/x/i.index", "s3://b/x/train-{shard}", "", (shard,), np.empty(0, BLOCK))
        >>> end = encode_end(index)
        >>> read_end(index.path, read_foot(index.path, end, 8 + len(end)), end).shards == (shard,)
        True
    """
    manifest, blocks = index.to_json(in_index=True), index.blocks.tobytes()
    lengths = int(index.block_places[-1]) - len(MAGIC)
    foot = FOOT.pack(VERSION, lengths, len(manifest), len(blocks), kernels.crc32c(blocks, kernels.crc32c(manifest)))
    return manifest + blocks + foot + FOOT_CRC.pack(kernels.crc32c(foot)) + MAGIC


def read_foot(path: str, data: bytes, size: int) -> Foot:
    """Reads the foot of an index.

    Args:
        path: Its URL.
        data: Its end, FOOT_BYTES at least, or all of it.
        size: Its size in bytes.

    Raises:
        ManifestError: It is not an index, it is cut off or damaged, or it is of a newer version.
    """
    foot = data[-FOOT_BYTES:]
    if len(foot) < FOOT_BYTES or not foot.endswith(MAGIC):
        raise ManifestError(
            f"{path}: this file does not end as an index does: it is another file, or an index that is cut off. Pass "
            "an index; `streamrec index SHARDS NAME.index` writes one"
        )
    (crc,) = FOOT_CRC.unpack_from(foot, FOOT.size)
    if kernels.crc32c(foot[: FOOT.size]) != crc:
        raise damage_error(path, "the CRC32C of its foot is wrong")
    version, *sizes = FOOT.unpack_from(foot)
    if version != VERSION:
        raise ManifestError(
            f"{path}: an index of version {version}, where {VERSION} is wanted: write it again: streamrec index SHARDS "
            f"{path}, or, if it is of a newer streamrec, update this one"
        )
    found = Foot(*sizes)
    whole = len(MAGIC) + found.lengths + found.end_bytes
    if whole != size:
        raise damage_error(path, f"it has {size:,} bytes where its foot says {whole:,}")
    return found


def read_end(path: str, foot: Foot, data: bytes, version: str | None = None) -> Index:
    """Reads the tables of an index.

    Args:
        path: Its URL, which names are relative to.
        foot: Its foot.
        data: Its last `foot.end_bytes` bytes, or more.
        version: What the store calls this version of the index.
    """
    end = len(data) - FOOT_BYTES
    tables = data[end - foot.blocks - foot.manifest : end]
    if kernels.crc32c(tables) != foot.crc:
        raise damage_error(path, "the CRC32C of its tables is wrong")
    try:
        found = Manifest.from_json(path, tables[: foot.manifest])
        blocks = np.frombuffer(tables[foot.manifest :], BLOCK)
    except (ManifestError, ValueError) as error:
        raise damage_error(path, repr(error)) from error
    index = Index(path, found.pattern, found.compression_type, found.shards, blocks, version)
    if found.compression_type or not index.is_sound(foot.lengths):
        raise damage_error(path, "its tables do not fit each other")
    return index


def damage_error(path: str, how: str) -> ManifestError:
    """The error for an index that is not as it was written."""
    return ManifestError(f"{path}: this index is damaged ({how}): write it again: streamrec index SHARDS {path}")


def cumulative(values: Sequence[int] | Numbers) -> Numbers:
    """0, and the sum of the first 1, 2, ... values."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.asarray(values, np.int64), out=sums[1:])
    return sums


class IndexedShard(NamedTuple):
    """What an index holds of one shard."""

    info: ShardInfo
    lengths: PackedLengths


class IndexEncoder:
    """The bytes of an index, in order.

    Args:
        path: Its URL.
        pattern: The URL of the shards, with `{shard}` where their number goes; None for that of the first shard.
    """

    def __init__(self, path: str, pattern: str | None = None) -> None:
        self._path = path
        self._pattern = pattern
        self._shards: list[ShardInfo] = []
        self._blocks = [np.empty(0, BLOCK)]
        self._locations = set[tuple[str, str]]()

    @property
    def count(self) -> int:
        """How many shards were added."""
        return len(self._shards)

    def add(self, shard: IndexedShard) -> bytes:
        """The next shard; returns the bytes to write next.

        Raises:
            ManifestError: Its records do not fill it, or it was added before.
        """
        info, lengths = shard
        if (location := location_of(info.path)) in self._locations:
            raise ManifestError(f"{info.path}: this shard is named twice: name it once")
        self._locations.add(location)
        if (lengths.records, lengths.end) != (info.records, info.bytes):
            raise ManifestError(
                f"{info.path}: {lengths.records:,} records end at byte {lengths.end:,}, and the shard has "
                f"{info.records:,} records and {info.bytes:,} bytes: what was read is not what is there; write the "
                "index again"
            )
        head = b"" if self._shards else MAGIC
        self._shards.append(info)
        self._blocks.append(lengths.blocks)
        return head + lengths.data

    def finish(self) -> tuple[Index, bytes]:
        """The index, and the last bytes to write."""
        pattern = self._pattern or (self._shards[0].path if self._shards else self._path)
        index = Index(self._path, pattern, "", tuple(self._shards), np.concatenate(self._blocks))
        return index, (b"" if self._shards else MAGIC) + encode_end(index)


def encode_index(path: str, shards: list[IndexedShard], pattern: str | None = None) -> bytes:
    """A whole index."""
    encoder = IndexEncoder(path, pattern)
    data = b"".join(map(encoder.add, shards))
    return data + encoder.finish()[1]
