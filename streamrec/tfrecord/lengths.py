"""Packed lengths of records, as an index stores them. No I/O.

The lengths of a shard are split into blocks of BLOCK_RECORDS; the last block may be shorter. A
block stores each length as `length - base` in `width` bits, where `base` is the block's shortest
length. The bits follow each other, the lowest bit first (as in Parquet's bit packing), and a block
ends at a whole byte. The table of blocks has a row (BLOCK) for each block:

- `base`: the shortest length in the block, in bytes;
- `end`: the offset in the shard at which the frame of the block's last record ends;
- `crc`: the CRC32C of the packed block;
- `width`: bits of a packed length, 0 to MAX_BITS.

So each block can be decoded alone: its first record's frame begins at the `end` of the block before
it, or at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.tfrecord.frames import FOOTER_BYTES, HEADER_BYTES

BLOCK_RECORDS: Final = 1024
MAX_BITS: Final = 57
"""The widest difference of lengths in a block.

A length is unpacked from the eight bytes that begin with its first bit's byte: up to seven bits
belong to others.
"""

BLOCK: Final = np.dtype([("base", "<i8"), ("end", "<i8"), ("crc", "<u4"), ("width", "u1")])
"""A row of the table of blocks: 21 bytes."""

FRAME_BYTES: Final = HEADER_BYTES + FOOTER_BYTES

Lengths = npt.NDArray[np.int64]
Blocks = npt.NDArray[Any]
"""Rows of BLOCK."""


@dataclass(frozen=True, eq=False)
class PackedLengths:
    """The lengths of a shard's records.

    They are packed blocks, one after the other, with their table and the number of lengths.
    """

    data: bytes
    blocks: Blocks
    records: int

    @property
    def end(self) -> int:
        """The offset at which the last frame ends.

        This is the shard's size, unless other bytes follow its records.
        """
        return int(self.blocks["end"][-1]) if len(self.blocks) else 0


class LengthPacker:
    """Packs the lengths of a shard's records, which are added in any number of calls.

    Examples:
        >>> packer = LengthPacker()
        >>> packer.add(np.array([100, 101, 103]))
        >>> packed = packer.finish()
        >>> packed.data.hex(), packed.blocks[["base", "width"]].tolist(), packed.end
        ('34', [(100, 2)], 352)
    """

    def __init__(self) -> None:
        self._waiting: list[Lengths] = []
        self._waiting_records = 0
        self._data: list[bytes] = []
        self._blocks: list[tuple[int, int, int, int]] = []
        self._records = 0
        self._end = 0

    def add(self, lengths: Lengths) -> None:
        """Takes the lengths of the next records, in bytes of their payloads."""
        self._waiting.append(np.asarray(lengths, np.int64))
        self._waiting_records += len(lengths)
        if self._waiting_records >= BLOCK_RECORDS:
            self._pack(self._waiting_records // BLOCK_RECORDS * BLOCK_RECORDS)

    def finish(self) -> PackedLengths:
        """The packed lengths of all records that were added."""
        self._pack(self._waiting_records)
        return PackedLengths(b"".join(self._data), np.array(self._blocks, BLOCK), self._records)

    def _pack(self, records: int) -> None:
        waiting = np.concatenate(self._waiting) if self._waiting else np.empty(0, np.int64)
        self._waiting = [waiting[records:].copy()]
        self._waiting_records -= records
        self._records += records
        for first in range(0, records, BLOCK_RECORDS):
            self._pack_block(waiting[first : min(first + BLOCK_RECORDS, records)])

    def _pack_block(self, lengths: Lengths) -> None:
        base = int(lengths.min())
        rest = (lengths - base).astype(np.uint64)
        width = int(rest.max()).bit_length()
        if base < 0 or width > MAX_BITS:
            raise ValueError(
                f"lengths from {base} on, {width} bits apart: a length is 0 to 2**{MAX_BITS} bytes"
            )
        self._end += int(lengths.sum()) + FRAME_BYTES * len(lengths)
        data = pack(rest, width)
        self._data.append(data)
        self._blocks.append((base, self._end, kernels.crc32c(data), width))


def pack(values: npt.NDArray[np.uint64], width: int) -> bytes:
    """Numbers below 2**width, one after the other, the lowest bit first."""
    bits = (values[:, np.newaxis] >> np.arange(width, dtype=np.uint64)) & np.uint64(1)
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


def packed_sizes(blocks: Blocks, counts: Lengths) -> Lengths:
    """Bytes of each packed block, whose number of lengths is in `counts`."""
    sizes: Lengths = (counts * blocks["width"] + 7) // 8
    return sizes


def unpack(data: Sequence[bytes], blocks: Blocks, counts: Lengths) -> Lengths:
    """Unpacks `counts` lengths of several blocks.

    Each item of `data` contains one or more whole ones.

    Examples:
        >>> packer = LengthPacker()
        >>> packer.add(np.array([100, 101, 103]))
        >>> packed = packer.finish()
        >>> unpack([packed.data], packed.blocks, np.array([3])).tolist()
        [100, 101, 103]
    """
    padded = b"".join([*data, b"\0" * 8])
    words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    lengths = np.empty(int(counts.sum()), np.int64)
    at = first = 0
    rows = zip(blocks["base"].tolist(), blocks["width"].tolist(), counts.tolist(), strict=True)
    for base, width, count in rows:
        if width:
            size = (count * width + 7) // 8
            starts, shifts, mask = bit_layout(width)
            packed = words[at : at + size][starts[:count]]
            packed >>= shifts[:count]
            packed &= mask
            at += size
            np.add(packed.view(np.int64), base, out=lengths[first : first + count])
        else:
            lengths[first : first + count] = base
        first += count
    return lengths


@cache
def bit_layout(width: int) -> tuple[Lengths, npt.NDArray[np.uint64], np.uint64]:
    """How lengths of this width lie in a block.

    For each: the byte in which it begins, and the bits before it in that byte; and the mask for
    all.
    """
    bits = np.arange(BLOCK_RECORDS) * width
    return bits >> 3, (bits & 7).astype(np.uint64), np.uint64((1 << width) - 1)
