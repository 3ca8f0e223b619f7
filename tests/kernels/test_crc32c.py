"""CRC32C: every implementation against google-crc32c, continuation, the mask."""

import ctypes
import mmap
import sys

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernels
from tests.oracle.kernels import masked_crc32c

NATIVE = kernels.crc32c_implementations()
# Around each size at which an implementation changes its way: words, splitting, whole blocks, parts
# of them.
EDGES = sorted(
    {at + near for at in (8, 192, 256, 512, 6144, 24_576) for near in (-1, 0, 1)}
    | {0, 1, 15, 16, 216, 768}
)
EDGES += [6336, 12_288, 60_000]


def test_the_table_runs_everywhere_and_the_best_is_first() -> None:
    """The order is that of preference; the fallback is never missing."""
    assert NATIVE[-1] == "table"
    assert len(set(NATIVE)) == len(NATIVE)


@pytest.mark.parametrize("name", NATIVE)
def test_every_length_and_alignment(name: str) -> None:
    """Each length up to some words past the first split, at each of the eight alignments."""
    data = np.random.default_rng(0).bytes(600)
    for start in range(8):
        for size in range(560):
            piece = data[start : start + size]
            got = kernels.crc32c_with(name, memoryview(data)[start : start + size])
            assert got == google_crc32c.value(piece), (start, size)


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("size", EDGES)
def test_the_sizes_at_which_the_way_changes(name: str, size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert kernels.crc32c_with(name, data) == google_crc32c.value(data)
    assert kernels.crc32c_with(name, data, 0xDEADBEEF) == google_crc32c.extend(0xDEADBEEF, data)


@pytest.mark.parametrize("name", NATIVE)
@given(size=st.integers(0, 100_000), seed=st.integers(0, 2**32 - 1), crc=st.integers(0, 2**32 - 1))
def test_each_implementation_computes_the_crc32c_that_google_does(
    name: str, size: int, seed: int, crc: int
) -> None:
    data = np.random.default_rng(seed).bytes(size)
    assert kernels.crc32c_with(name, data, crc) == google_crc32c.extend(crc, data)


@pytest.mark.skipif(sys.platform == "win32", reason="pages are protected by mprotect")
@pytest.mark.parametrize("name", NATIVE)
def test_bytes_outside_the_buffer_are_not_touched(name: str) -> None:
    """The buffer begins, or ends, where a page that must not be read does."""
    page = mmap.PAGESIZE
    pages = mmap.mmap(-1, 3 * page)
    middle = memoryview(pages)[page : 2 * page]
    middle[:] = np.random.default_rng(1).bytes(page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for beside in (start, start + 2 * page):
        assert protect(ctypes.c_void_p(beside), ctypes.c_size_t(page), 0) == 0
    for size in range(800):
        for piece in (middle[:size], middle[page - size :]):
            assert kernels.crc32c_with(name, piece) == google_crc32c.value(bytes(piece)), size


@given(data=st.binary(max_size=300))
def test_the_native_mask_equals_the_reference(data: bytes) -> None:
    assert kernels.masked_crc32c(data) == masked_crc32c(data)


def test_element_type_does_not_matter() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert kernels.crc32c(array) == google_crc32c.value(array.tobytes())
