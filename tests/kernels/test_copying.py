"""copy_bytes: small ones and large ones, of any kind; other threads run beside a large one."""

import numpy as np
import pytest

from streamrec.kernels import LARGE, copy_bytes


@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE])
def test_copies_what_there_is(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    for source in (data, bytearray(data), memoryview(data)):
        room = bytearray(size + 2)
        copy_bytes(memoryview(room)[1:-1], source)
        assert room == b"\0" + data + b"\0"


@pytest.mark.parametrize("size", [5, LARGE + 1])
@pytest.mark.parametrize("other", [0, 1, LARGE])
def test_sizes_that_differ(size: int, other: int) -> None:
    with pytest.raises(ValueError):
        copy_bytes(memoryview(bytearray(size)), bytes(other))
