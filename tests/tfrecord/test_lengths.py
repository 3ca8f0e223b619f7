"""Packed lengths: what is packed comes back, block by block, in as few bits as it needs."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.kernels import crc32c
from streamrec.tfrecord.lengths import (
    BLOCK_RECORDS,
    MAX_BITS,
    LengthPacker,
    PackedLengths,
    pack,
    packed_sizes,
    unpack,
)

FRAME = 16
"""Bytes around each payload."""


def packed(lengths: npt.ArrayLike, cuts: tuple[int, ...] = ()) -> PackedLengths:
    """Lengths, added in as many calls as the cuts make."""
    packer, array = LengthPacker(), np.asarray(lengths, np.int64)
    for first, last in pairwise((0, *cuts, len(array))):
        packer.add(array[first:last])
    return packer.finish()


def counts_of(records: int) -> npt.NDArray[np.int64]:
    """How many lengths each block has."""
    whole, rest = divmod(records, BLOCK_RECORDS)
    return np.array([BLOCK_RECORDS] * whole + [rest] * bool(rest), np.int64)


@given(
    base=st.integers(0, 1 << 40),
    width=st.integers(0, 50),  # of so many records, so that a shard has less than 8 EiB
    count=st.sampled_from([1, 2, 7, 8, 9, 1023, 1024, 1025, 2048, 3000]),
    seed=st.integers(0, 9),
    cuts=st.sets(st.integers(0, 3000), max_size=4),
)
def test_packed_lengths_are_unpacked_unchanged(
    base: int, width: int, count: int, seed: int, cuts: set[int]
) -> None:
    rest = np.random.default_rng(seed).integers(0, 1 << width, count, np.int64)
    found = packed(base + rest, tuple(sorted(cut for cut in cuts if cut < count)))
    counts = counts_of(count)
    assert (found.records, len(found.blocks)) == (count, len(counts))
    assert unpack([found.data], found.blocks, counts).tolist() == (base + rest).tolist()
    assert packed_sizes(found.blocks, counts).sum() == len(found.data)


def test_each_block_can_be_unpacked_alone() -> None:
    lengths = np.concatenate([np.arange(1024) % 9, np.full(1024, 5), np.arange(100) * 1000])
    found, counts = packed(lengths), counts_of(len(lengths))
    ends = np.cumsum(packed_sizes(found.blocks, counts))
    first = 0
    for number, (start, end) in enumerate(pairwise([0, *ends.tolist()])):
        own = slice(number, number + 1)
        data = found.data[start:end]
        assert crc32c(data) == found.blocks["crc"][number]
        alone = unpack([data], found.blocks[own], counts[own])
        assert alone.tolist() == lengths[first : first + len(alone)].tolist()
        first += len(alone)
        frames = int(lengths[:first].sum()) + first * FRAME
        assert found.blocks["end"][number] == frames
    assert found.end == frames
    assert found.blocks["base"].tolist() == [0, 5, 0]
    assert found.blocks["width"].tolist() == [4, 0, (99 * 1000).bit_length()]


def test_bits_follow_each_other_the_lowest_first() -> None:
    assert pack(np.array([1, 2, 3], np.uint64), 2) == bytes([0b111001])
    assert pack(np.array([0b101, 0b011, 0b111], np.uint64), 3) == bytes([0b11_011_101, 0b1])
    assert pack(np.array([], np.uint64), 5) == b""
    assert pack(np.array([0, 0], np.uint64), 0) == b""


def test_no_lengths_take_no_bytes() -> None:
    found = packed([])
    assert (found.data, len(found.blocks), found.records, found.end) == (b"", 0, 0, 0)


@pytest.mark.parametrize("lengths", [[-1], [5, -3], [0, 1 << MAX_BITS]])
def test_lengths_out_of_range_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="a length is 0 to"):
        packed(lengths)


def test_the_widest_lengths_are_packed() -> None:
    lengths = [0, (1 << MAX_BITS) - 1, 1, 1 << (MAX_BITS - 1)] * 5
    found = packed(lengths)
    assert found.blocks["width"].tolist() == [MAX_BITS]
    assert unpack([found.data], found.blocks, counts_of(20)).tolist() == lengths
