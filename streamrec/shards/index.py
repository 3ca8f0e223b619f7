"""An index: the manifest of a data set, and the length of each record.

Pure; `indexed_records.py` reads it.

It is one object; all numbers are little-endian:

    head      8 bytes     MAGIC
    lengths               the packed lengths of all records, shard after shard, as in
                          `tfrecord.lengths`
    manifest  JSON        as in `manifest.py`, with the version of each object, without marks
    blocks                the table of blocks of all shards, 21 bytes for each 1,024 records
    foot      44 bytes    FOOT: version of the format, sizes of `lengths`, `manifest` and `blocks`,
                          CRC32C of the last two, CRC32C of the foot before it, MAGIC

- To open an index, a reader reads its end: the foot, the manifest and the table of blocks, about
  110 bytes for each shard and 0.02 bytes for each record (21 MB for 10^9 records). It reads the
  lengths by ranges, block by block; each block has its CRC32C.
- `digest` covers names, numbers of records, sizes and the table of blocks (which holds a CRC32C of
  each block of lengths). All copies of a data set have the same digest.
- A reader refuses a `version` that it does not know.
- A writer writes it shard after shard, and holds only the tables and the current shards.
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
from streamrec.shards.places import relative
from streamrec.storage.arrivals import HEAD_BYTES as PAGE_BYTES
from streamrec.storage.arrivals import describe_page
from streamrec.tfrecord import BLOCK, BLOCK_RECORDS, MAX_BITS, PackedLengths, packed_sizes

MAGIC: Final = b"srec-idx"
VERSION: Final = 1
FOOT: Final = struct.Struct("<IQQQI")
FOOT_CRC: Final = struct.Struct("<I")
FOOT_BYTES: Final = FOOT.size + FOOT_CRC.size + len(MAGIC)

Numbers = npt.NDArray[np.int64]


@display_repr
@dataclass(frozen=True, eq=False)
class Index(Manifest):
    """The tables of an index: all of it but the records' lengths.

    Attributes:
        path: The URL of the index.
        pattern: The URL of the shards, with `{shard}` for their number; or that of the first one.
        compression_type: Always "": compressed shards have no index.
        shards: The shards, in order, with their full URLs.
        blocks: The table of blocks of all shards, one after the other: [n] of
            `tfrecord.lengths.BLOCK`.
        version: The store's version of the index; None if the store does not give one.
        digest: 32 hexadecimal digits that identify this data set; the same for its copies.
    """

    blocks: npt.NDArray[Any]
    version: str | None = None

    def __len__(self) -> int:
        """The number of records."""
        return int(self.first_records[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def manifest(self) -> Manifest:
        """The manifest of these shards, whose marks are the first records of blocks."""
        shards = tuple(
            replace(shard, marks=self._marks(number)) for number, shard in enumerate(self.shards)
        )
        return Manifest(self.path, self.pattern, self.compression_type, shards)

    def _marks(self, number: int) -> tuple[tuple[int, int], ...]:
        first, last = self.first_blocks[number : number + 2].tolist()
        marks: list[tuple[int, int]] = []
        for block, byte in enumerate(self.block_offsets[first:last].tolist()):
            add_mark(marks, block * BLOCK_RECORDS, byte)
        return tuple(marks)

    @cached_property
    def first_records(self) -> Numbers:
        """The number of each shard's first record, [shards + 1].

        The last one is the number of records.
        """
        return cumulative([shard.records for shard in self.shards])

    @cached_property
    def first_blocks(self) -> Numbers:
        """The number of each shard's first block, [shards + 1]."""
        return cumulative([-(-shard.records // BLOCK_RECORDS) for shard in self.shards])

    @cached_property
    def block_counts(self) -> Numbers:
        """The number of records in each block, [blocks]."""
        counts = np.full(len(self.blocks), BLOCK_RECORDS, np.int64)
        records = np.diff(self.first_records)
        filled = records > 0
        counts[self.first_blocks[1:][filled] - 1] = (records[filled] - 1) % BLOCK_RECORDS + 1
        return counts

    @cached_property
    def block_places(self) -> Numbers:
        """The offset of each packed block in the index, in bytes, [blocks + 1].

        The last one is their end.
        """
        return cumulative(packed_sizes(self.blocks, self.block_counts)) + len(MAGIC)

    @cached_property
    def block_offsets(self) -> Numbers:
        """The offset of each block's first frame in its shard, in bytes, [blocks]."""
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
        names = [
            [relative(self.path, shard.path), shard.records, shard.bytes] for shard in self.shards
        ]
        state = hashlib.sha256(json.dumps(names).encode())
        state.update(self.blocks.tobytes())
        return state.hexdigest()[:32]

    def is_sound(self, lengths: int) -> bool:
        """Whether the table of blocks fits these shards, and that many bytes of packed lengths."""
        if self.first_blocks[-1] != len(self.blocks):
            return False
        if (self.blocks["width"] > MAX_BITS).any() or (self.blocks["end"] < 0).any():
            return False
        sizes = self.block_bytes
        filled = np.diff(self.first_blocks) > 0
        ends = self.blocks["end"][self.first_blocks[1:][filled] - 1]
        frames = self.block_counts * FRAME_BYTES
        fits = (self.blocks["base"] >= 0) & (
            self.blocks["base"] <= (sizes - frames) // self.block_counts
        )
        placed = self.block_places[-1] == len(MAGIC) + lengths
        return (
            placed
            and bool(fits.all())
            and ends.tolist() == [shard.bytes for shard in self.shards if shard.records]
        )

    def shard_of(self, records: Numbers) -> Numbers:
        """The number of the shard that holds each of these records."""
        return np.searchsorted(self.first_records, records, "right") - 1

    def block_of(self, records: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The shard of each of these records, its block, and its number in the block."""
        shards = self.shard_of(records)
        in_shard = records - self.first_records[shards]
        return (
            shards,
            self.first_blocks[shards] + in_shard // BLOCK_RECORDS,
            in_shard % BLOCK_RECORDS,
        )


class Foot(NamedTuple):
    """The sections of an index, in bytes.

    They are its packed lengths, its manifest and its table of blocks; and the CRC32C of the last
    two.
    """

    lengths: int
    manifest: int
    blocks: int
    crc: int

    @property
    def end_bytes(self) -> int:
        """Bytes that are read to open the index."""
        return self.manifest + self.blocks + FOOT_BYTES


def encode_end(index: Index) -> bytes:
    """The bytes after the packed lengths.

    Examples:
        >>> shard = ShardInfo("s3://b/x/train-0", records=0, bytes=0, crc32c=0)
        >>> blocks = np.empty(0, BLOCK)
        >>> index = Index("s3://b/x/i.index", "s3://b/x/train-{shard}", "", (shard,), blocks)
        >>> end = encode_end(index)
        >>> read_end(index.path, read_foot(index.path, end, 8 + len(end)), end).shards == (shard,)
        True
    """
    manifest = index.to_json(in_index=True)
    blocks = index.blocks.tobytes()
    lengths = int(index.block_places[-1]) - len(MAGIC)
    foot = FOOT.pack(
        VERSION,
        lengths,
        len(manifest),
        len(blocks),
        kernels.crc32c(blocks, kernels.crc32c(manifest)),
    )
    return manifest + blocks + foot + FOOT_CRC.pack(kernels.crc32c(foot)) + MAGIC


def other_file(data: bytes, size: int) -> str:
    """Describes a file of `size` bytes that is not an index, of which the last ones are given."""
    page = describe_page(data[:PAGE_BYTES]) if len(data) == size else None
    if page is None:
        return "it is another file, or an index that is cut off"
    return f"it is {page}, such as a login page or a server's error in place of the file"


def read_foot(path: str, data: bytes, size: int) -> Foot:
    """Parses the foot of an index from its end, at least FOOT_BYTES.

    The whole index has `size` bytes.
    """
    foot = data[-FOOT_BYTES:]
    if len(foot) < FOOT_BYTES or not foot.endswith(MAGIC):
        raise ManifestError(
            f"{path}: this file does not end like an index: {other_file(data, size)}; pass an "
            "index: `streamrec index SHARDS NAME.index` writes one"
        )
    # The CRC32C is checked before the version: a damaged foot must not look like a newer one.
    (crc,) = FOOT_CRC.unpack_from(foot, FOOT.size)
    if kernels.crc32c(foot[: FOOT.size]) != crc:
        raise damage_error(path, "the CRC32C of its foot is wrong")
    version, *sizes = FOOT.unpack_from(foot)
    if version != VERSION:
        raise ManifestError(
            f"{path}: this index has version {version}, and this streamrec reads version "
            f"{VERSION}: write it again: streamrec index SHARDS {path}; or, if a newer streamrec "
            "wrote it, update this one"
        )
    sections = Foot(*sizes)
    expected = len(MAGIC) + sections.lengths + sections.end_bytes
    if expected != size:
        raise damage_error(path, f"it has {size:,} bytes, and its foot says {expected:,}")
    return sections


def read_end(path: str, foot: Foot, data: bytes, version: str | None = None) -> Index:
    """Parses the tables of an index from its last `foot.end_bytes` bytes, or more.

    Names are relative to its `path`.
    """
    # The CRC32C shows damage, and not that the tables fit: another program may have written them.
    end = len(data) - FOOT_BYTES
    tables = data[end - foot.blocks - foot.manifest : end]
    if kernels.crc32c(tables) != foot.crc:
        raise damage_error(path, "the CRC32C of its tables is wrong")
    try:
        manifest = Manifest.from_json(path, tables[: foot.manifest])
        blocks = np.frombuffer(tables[foot.manifest :], BLOCK)
    except (ManifestError, ValueError) as error:
        raise damage_error(path, repr(error)) from error
    index = Index(
        path,
        manifest.pattern,
        manifest.compression_type,
        shards=manifest.shards,
        blocks=blocks,
        version=version,
    )
    if manifest.compression_type or not index.is_sound(foot.lengths):
        raise damage_error(path, "its tables do not fit each other")
    return index


def damage_error(path: str, reason: str) -> ManifestError:
    """The error for an index that is damaged; it says how to write the index again."""
    return ManifestError(
        f"{path}: this index is damaged ({reason}): write it again: streamrec index SHARDS {path}"
    )


def cumulative(values: Sequence[int] | Numbers) -> Numbers:
    """0, and the sum of the first 1, 2, ... values."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.asarray(values, np.int64), out=sums[1:])
    return sums


class IndexedShard(NamedTuple):
    """A shard of an index, with the lengths of its records."""

    info: ShardInfo
    lengths: PackedLengths


class IndexEncoder:
    """The bytes of an index, in order.

    The pattern is the URL of the shards, with `{shard}` for their number; None for that of the
    first shard.
    """

    def __init__(self, path: str, pattern: str | None = None) -> None:
        self._path = path
        self._pattern = pattern
        self._shards: list[ShardInfo] = []
        self._blocks = [np.empty(0, BLOCK)]

    @property
    def count(self) -> int:
        return len(self._shards)

    def add(self, shard: IndexedShard) -> bytes:
        """Adds the next shard, whose records must fill it; returns the bytes to write next."""
        info, lengths = shard
        if (lengths.records, lengths.end) != (info.records, info.bytes):
            raise ManifestError(
                f"{info.path}: {lengths.records:,} records end at byte {lengths.end:,}, and the "
                f"shard has {info.records:,} records and {info.bytes:,} bytes: the shard was "
                "written while it was read; write the index again"
            )
        head = b"" if self._shards else MAGIC
        self._shards.append(info)
        self._blocks.append(lengths.blocks)
        return head + lengths.data

    def finish(self) -> tuple[Index, bytes]:
        """Returns the index, and the last bytes to write."""
        pattern = self._pattern or (self._shards[0].path if self._shards else self._path)
        index = Index(self._path, pattern, "", tuple(self._shards), np.concatenate(self._blocks))
        return index, (b"" if self._shards else MAGIC) + encode_end(index)


def encode_index(path: str, shards: list[IndexedShard], pattern: str | None = None) -> bytes:
    """A whole index in memory; see `IndexEncoder` for the pattern."""
    encoder = IndexEncoder(path, pattern)
    data = b"".join(map(encoder.add, shards))
    return data + encoder.finish()[1]
