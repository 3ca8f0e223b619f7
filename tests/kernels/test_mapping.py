"""Files as they lie in the page cache: the same bytes, for as long as anybody looks, and no descriptor more."""

import os
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.kernels import _native

DATA = os.urandom(3 * 4096 + 5)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mapped") / "file"
    path.write_bytes(DATA)
    return path


@given(st.integers(0, len(DATA) - 1), st.integers(1, len(DATA)))
def test_any_bytes_of_a_file(kernels: ModuleType, path: Path, offset: int, size: int) -> None:
    size = min(size, len(DATA) - offset)
    with open(path, "rb") as file:
        view = memoryview(kernels.map_file(file.fileno(), offset, size))
    assert view.readonly
    assert (view.nbytes, bytes(view)) == (size, DATA[offset : offset + size]), "also when the file was closed"


@pytest.mark.parametrize(
    ("offset", "size"),
    [(-1, 5), (0, 0), (0, -1), (0, len(DATA) + 1), (len(DATA), 1), (1 << 60, 1), ((1 << 63) - 1, len(DATA))],
)
def test_bytes_that_are_not_there(kernels: ModuleType, path: Path, offset: int, size: int) -> None:
    """To look at them would end the process."""
    with open(path, "rb") as file, pytest.raises(ValueError, match="bytes"):
        kernels.map_file(file.fileno(), offset, size)


@pytest.mark.parametrize("step", [1, 4096, 1 << 20])
def test_what_was_just_written_is_cached(kernels: ModuleType, path: Path, step: int) -> None:
    """Where the filesystem tells: it tells it of one byte too, then."""
    with open(path, "rb") as file:
        told = kernels.is_cached(file.fileno(), 0, 1, 1)
        assert kernels.is_cached(file.fileno(), 5, len(DATA) - 5, step) is told


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system does not tell what is cached")
def test_what_is_not_cached(kernels: ModuleType, tmp_path: Path) -> None:
    """A page in the middle that was forgotten is found, in steps that are short enough."""
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 256 << 10, 256 << 10, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(file.fileno(), [bytearray(1)], 384 << 10, os.RWF_NOWAIT)
            forgotten = False  # a filesystem that lives in memory forgets nothing
        except OSError:
            forgotten = True
        assert kernels.is_cached(file.fileno(), 0, 1 << 20, 4096) is not forgotten


def test_what_nobody_can_tell_is_not_cached(kernels: ModuleType) -> None:
    read, write = os.pipe()
    assert not kernels.is_cached(read, 0, 1, 1)
    assert not kernels.is_cached(987_654, 0, 1, 1)
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("offset", "size", "step"),
    [(-1, 5, 1), (0, 0, 1), (0, -1, 1), (0, 5, 0), (0, 5, -1), ((1 << 63) - 1, 5, 1)],
)
def test_what_cannot_be_asked(kernels: ModuleType, path: Path, offset: int, size: int, step: int) -> None:
    with open(path, "rb") as file, pytest.raises(ValueError, match="wanted 1 or more"):
        kernels.is_cached(file.fileno(), offset, size, step)


def test_no_file(kernels: ModuleType) -> None:
    for number in (-1, 987_654):
        with pytest.raises(OSError, match="Bad file descriptor"):
            kernels.map_file(number, 0, 1)
    read, write = os.pipe()
    with pytest.raises(ValueError, match="1 bytes from 0 on, of a file of 0"):
        kernels.map_file(read, 0, 1)
    os.close(read)
    os.close(write)


def test_what_is_no_file_of_this_machine_is_not_safe_to_map(kernels: ModuleType) -> None:
    read, write = os.pipe()
    assert not kernels.is_safe_to_map(read)
    assert not kernels.is_safe_to_map(987_654)
    os.close(read)
    os.close(write)


def test_what_is_there_is_not_lost(kernels: ModuleType, path: Path) -> None:
    label = object()
    with open(path, "rb") as file:
        view = memoryview(kernels.map_file(file.fileno(), 0, len(DATA), label))
    assert view == DATA
    assert not any(other is label for other, _ in kernels.lost_pages())


def test_wants_numbers(kernels: ModuleType) -> None:
    with pytest.raises(TypeError):
        kernels.map_file("file", 0, 1)


def test_a_mapping_needs_no_descriptor(path: Path) -> None:
    """A shuffle buffer may hold thousands."""
    before = len(os.listdir("/proc/self/fd"))
    with open(path, "rb") as file:
        kept = [_native.map_file(file.fileno(), 0, len(DATA)) for _ in range(2000)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert bytes(kept[-1]) == DATA


def test_a_mapping_ends_with_the_last_who_looks(path: Path) -> None:
    def count() -> int:
        return Path("/proc/self/maps").read_text().count(str(path))

    with open(path, "rb") as file:
        view = memoryview(_native.map_file(file.fileno(), 4097, 10))
    part = view[3:]
    del view
    assert (count(), bytes(part)) == (1, DATA[4100:4107])
    del part
    assert count() == 0


def test_stamps(kernels: ModuleType, tmp_path: Path) -> None:
    """As os.stat tells it, by any kind of name; what is written later shows."""
    path = tmp_path / "ein Stück"
    path.write_bytes(DATA)
    os.utime(path, ns=(0, 1_234_567_890_123_456_789))
    found = os.stat(path)
    expected = (found.st_dev, found.st_ino, len(DATA), 1_234_567_890_123_456_789)
    assert kernels.file_stamp(path) == kernels.file_stamp(str(path)) == expected
    path.write_bytes(b"short")
    assert kernels.file_stamp(path)[:3] == (*expected[:2], 5)


def test_stamps_of_what_is_not_there(kernels: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        kernels.file_stamp(tmp_path / "nothing")
    with pytest.raises(ValueError, match="null"):
        kernels.file_stamp("a\0b")
    with pytest.raises(TypeError):
        kernels.file_stamp(None)
