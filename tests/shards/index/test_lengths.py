"""Packed lengths: what was packed comes back, block by block, and takes no more room than it should."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernels
from streamrec.tfrecord import BLOCK_RECORDS, LengthPacker, PackedLengths, packed_sizes, unpack

MOST = (1 << 57) - 1
some_lengths = st.lists(
    st.one_of(st.integers(0, 300), st.integers(0, 1 << 20), st.integers(0, MOST // BLOCK_RECORDS)), max_size=50
)


def packed(*parts: npt.ArrayLike) -> PackedLengths:
    packer = LengthPacker()
    for part in parts:
        packer.add(np.asarray(part, np.int64))
    return packer.finish()


def counts_of(records: int) -> npt.NDArray[np.int64]:
    full, rest = divmod(records, BLOCK_RECORDS)
    return np.array([BLOCK_RECORDS] * full + [rest] * (rest > 0), np.int64)


@given(st.lists(some_lengths, max_size=8), st.integers(1, 60))
def test_what_was_packed_comes_back(parts: list[list[int]], repeats: int) -> None:
    lengths = [length for part in parts for length in part] * repeats
    found = packed(*[part * repeats for part in parts]) if repeats == 1 else packed(*parts * repeats)
    if repeats == 1:
        lengths = [length for part in parts for length in part]
    counts = counts_of(len(lengths))
    assert found.records == len(lengths)
    assert unpack([found.data], found.blocks, counts).tolist() == lengths
    assert packed_sizes(found.blocks, counts).sum() == len(found.data)
    assert found.end == sum(lengths) + 16 * len(lengths)


def test_each_block_is_decoded_alone() -> None:
    lengths = np.random.default_rng(5).integers(0, 1 << 40, 3 * BLOCK_RECORDS + 7)
    found = packed(lengths)
    counts = counts_of(len(lengths))
    ends = np.cumsum(packed_sizes(found.blocks, counts)).tolist()
    for block, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
        data = found.data[first:last]
        own = lengths[block * BLOCK_RECORDS : (block + 1) * BLOCK_RECORDS]
        assert (unpack([data], found.blocks[block : block + 1], counts[block : block + 1]) == own).all()
        assert found.blocks["crc"][block] == kernels.crc32c(data)
        assert found.blocks["end"][block] == (lengths[: (block + 1) * BLOCK_RECORDS] + 16).sum()


def test_equal_lengths_take_no_byte() -> None:
    assert packed([700] * 5000).data == b""


@pytest.mark.parametrize(("mean", "spread"), [(1_000, 400), (110_000, 60_000), (110_000, 1)])
def test_similar_lengths_take_three_bytes_at_the_most(mean: int, spread: int) -> None:
    found = packed(np.random.default_rng(1).integers(mean - spread, mean + spread, 50_000))
    assert len(found.data) + found.blocks.nbytes <= 3 * found.records


@pytest.mark.parametrize("lengths", [[-1], [0, 1 << 57]])
def test_lengths_that_cannot_be_packed_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="a length is 0 to"):
        packed(lengths)
