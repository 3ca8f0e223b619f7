"""pad_rows: rows of different lengths as rows of one length, bounds checked."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernels


def splits_of(*splits: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(splits, np.int64)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[bytes, Any, int, bytes]:
    width = draw(st.sampled_from([1, 3, 4, 8, 16]))
    lengths = draw(st.lists(st.integers(0, 9), max_size=12))
    values = draw(st.binary(min_size=sum(lengths) * width, max_size=sum(lengths) * width))
    longest = max(lengths, default=0) + draw(st.integers(0, 3))
    fill = draw(st.binary(min_size=width, max_size=width))
    return values, np.cumsum([0, *lengths], dtype=np.int64), longest, fill


@given(job=jobs())
def test_rows_are_filled_up(job: tuple[bytes, Any, int, bytes]) -> None:
    """Each row begins with its elements; all else is the fill."""
    assert bytes(kernels.pad_rows(*job)) == padded(*job)


def padded(values: bytes, splits: Any, longest: int, fill: bytes) -> bytes:
    width = len(fill)
    rows = [values[first * width : last * width] for first, last in itertools.pairwise(splits.tolist())]
    return b"".join(row + fill * (longest - len(row) // width) for row in rows)


@pytest.mark.parametrize("longest", [1000, 1001])
def test_a_large_result_is_the_same_however_its_rows_are_aligned(longest: int) -> None:
    """Numbers of eight bytes go past the cache from a megabyte on, in pairs where two lie together."""
    lengths = np.random.default_rng(1).integers(0, 1000, 200)
    lengths[:4] = 0, 1, 2, 1000
    splits = np.concatenate([[0], np.cumsum(lengths)])
    values, fill = np.arange(splits[-1]), np.full(1, -7)
    data = bytes(kernels.pad_rows(values, splits, longest, fill))
    assert len(data) > 1 << 20
    assert data == padded(values.tobytes(), splits, longest, fill.tobytes())


def test_a_large_result_is_writable() -> None:
    rows = np.frombuffer(kernels.pad_rows(b"abcd", splits_of(*range(5)), 1 << 16, b"."), np.uint8).reshape(4, -1)
    rows += 1
    assert rows[:, :2].tobytes() == b"b/c/d/e/"


@pytest.mark.parametrize(
    "splits",
    [[0, 7], [-1, 2], [0, 2, 1], [0, 5], [2**63 - 1, -(2**63)], [-(2**63), 2**63 - 1]],
    ids=str,
)
def test_rows_that_do_not_fit(splits: list[int]) -> None:
    with pytest.raises(ValueError, match=r"row \d is \[.*\): wanted up to 4 of 6 elements"):
        kernels.pad_rows(b"abcdef", splits_of(*splits), 4, b".")


@pytest.mark.parametrize(
    ("values", "splits", "fill"), [(b"abc", [], b"."), (b"abc", [0, 1], b""), (b"abc", [0, 1], b"..")]
)
def test_arguments_that_do_not_fit_together(values: bytes, splits: list[int], fill: bytes) -> None:
    with pytest.raises(ValueError, match="wanted at least one split, and whole elements"):
        kernels.pad_rows(values, splits_of(*splits), 4, fill)


@pytest.mark.parametrize("splits", [[0, 1], np.zeros(2, np.int32), None])
def test_no_splits(splits: Any) -> None:
    with pytest.raises(TypeError):
        kernels.pad_rows(b"abc", splits, 4, b".")


def test_more_than_there_is_memory() -> None:
    """The size overflows: no memory, and nothing written."""
    with pytest.raises(MemoryError):
        kernels.pad_rows(b"", splits_of(0, 0, 0, 0), 2**62, bytes(8))


def test_buffers_are_released() -> None:
    """A bytearray that is exported cannot be resized: after success and after an error it can."""
    data = bytearray(b"abc")
    kernels.pad_rows(data, splits_of(0, 3), 4, b".")
    with pytest.raises(ValueError, match="row 0"):
        kernels.pad_rows(data, splits_of(0, 4), 4, b".")
    data.append(0)
