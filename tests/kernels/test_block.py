"""Blocks: memory that is used again, and never while anything can see it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernels

SIZES = st.integers(0, 70_000) | st.integers(0, 9 << 20)


@pytest.mark.parametrize("size", [0, 1, (64 << 10) - 1, 64 << 10, 100_000, 5 << 20])
def test_is_writable_bytes(size: int) -> None:
    block = kernels.allocate(size)
    array = np.frombuffer(block, np.uint8) if size else np.empty(0, np.uint8)
    assert memoryview(block).nbytes == len(block) == size
    assert not memoryview(block).readonly
    array[:] = 7
    assert bytes(block) == b"\7" * size


def test_a_wave_finds_the_memory_of_the_one_before() -> None:
    """A queue that fills up and is emptied, again and again, has the same memory each time."""
    waves = []
    for _ in range(3):
        wave = [np.frombuffer(kernels.allocate(3 << 20), np.uint8) for _ in range(30)]
        waves.append({block.ctypes.data for block in wave})
        rest = wave.pop()
        del wave
    del rest
    assert len(waves[0] & waves[1] & waves[2]) >= 28  # one of each wave outlives it


def test_a_block_may_reuse_freed_memory_that_is_larger() -> None:
    """Chunks of a few sizes take turns with each other's memory, where there is none of their own
    size.
    """
    own = [kernels.allocate(15 << 20) for _ in range(20)]
    first = np.frombuffer(kernels.allocate(20 << 20), np.uint8)
    address = first.ctypes.data
    del first
    again = np.frombuffer(kernels.allocate(15 << 20), np.uint8)
    assert again.ctypes.data == address
    assert len(own) == 20  # they live until here


@pytest.mark.skipif(
    sys.platform != "linux" or "ASAN_OPTIONS" in os.environ,
    reason="only Linux can be lent memory, and no sanitizer",
)
def test_an_epoch_finds_the_memory_of_the_one_before() -> None:
    """Though no Block lived in between, and it is more than what stays."""
    waves = []
    for _ in range(2):
        wave = [np.frombuffer(kernels.allocate(6 << 20), np.uint8) for _ in range(20)]
        for block in wave:
            block[:] = 1
        waves.append({block.ctypes.data for block in wave})
        del wave, block
    assert len(waves[0] & waves[1]) >= 18  # the test before may have left some


def test_memory_is_given_back() -> None:
    """What no wave wants any more: most of it soon, all but a little when no Block lives."""
    program = """
import numpy as np
from pathlib import Path
from streamrec import kernels

def held():
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) >> 10

before = held()
wave = [kernels.allocate(3 << 20) for _ in range(100)]
for block in wave:
    np.frombuffer(block, np.uint8)[:] = 1
rest = wave.pop()
del wave, block
assert held() - before > 250
for _ in range(2_000):
    kernels.allocate(100_000)
assert held() - before < 60
del rest
"""
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc here")
    sanitizer = (
        os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"
    )  # it would keep what was given back
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "ASAN_OPTIONS": sanitizer}
    )


def test_memory_that_anything_sees_is_not_used_again() -> None:
    view = memoryview(kernels.allocate(3 << 20))[5:6]
    view[0] = 1
    others = [np.frombuffer(kernels.allocate(3 << 20), np.uint8) for _ in range(8)]
    for other in others:
        other[:] = 2
    assert view[0] == 1


@given(st.lists(SIZES, max_size=30), st.randoms(use_true_random=False))
def test_living_blocks_never_overlap(sizes: list[int], random: object) -> None:
    living: list[tuple[int, np.ndarray]] = []
    for mark, size in enumerate(sizes):
        array = np.frombuffer(kernels.allocate(size), np.uint8) if size else np.empty(0, np.uint8)
        array[:] = mark
        living.append((mark, array))
        if len(living) > 4:
            living.pop(random.randrange(len(living)))  # type: ignore[attr-defined]
        assert all((array == mark).all() for mark, array in living)


def test_gathered_records_outlive_their_sources() -> None:
    source = np.frombuffer(kernels.allocate(1 << 20), np.uint8)
    source[:] = 3
    spans = np.array([[0, 1 << 19], [1 << 19, 1 << 20]], np.int64)
    buffer, _ = kernels.gather([source], None, spans)
    del source
    np.frombuffer(kernels.allocate(1 << 20), np.uint8)[:] = 9
    assert bytes(buffer) == b"\3" * (1 << 20)
