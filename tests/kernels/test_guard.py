"""The guard over mappings: a file that is cut off, or a failing disk, costs pages, and never the process."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from streamrec import encode_records
from streamrec.kernels import BAD_LENGTH_CRC, _native, scan_frames

PAGE = os.sysconf("SC_PAGESIZE")
TABLE = 1024
"""Mappings that the guard keeps in one table."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shards are mapped unasked on Linux alone")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (8 * PAGE))
    return path


def mapped(path: Path, offset: int, size: int, label: object = None) -> memoryview:
    with open(path, "rb") as file:
        return memoryview(_native.map_file(file.fileno(), offset, size, label))


def lost(label: object) -> list[int]:
    return [offset for other, offset in _native.lost_pages() if other is label]


def test_pages_that_were_cut_off_are_zeros_and_told(path: Path) -> None:
    label = object()
    view = mapped(path, PAGE + 5, 6 * PAGE, label)
    os.truncate(path, 3 * PAGE)
    assert lost(label) == [], "until somebody looks"
    assert view[2 * PAGE - 6 : 2 * PAGE - 4] == b"x\0"
    assert bytes(view[2 * PAGE - 5 :]) == bytes(4 * PAGE + 5)
    assert lost(label) == [3 * PAGE], "the one that was looked at first"
    assert bytes(view[: 2 * PAGE - 5]) == b"x" * (2 * PAGE - 5)
    del view
    assert lost(label) == [3 * PAGE], "for ever"


def test_other_mappings_of_the_file_lose_nothing(path: Path) -> None:
    labels = [object(), object()]
    views = [mapped(path, 0, 8 * PAGE, label) for label in labels]
    os.truncate(path, 0)
    assert views[0][0] == 0
    assert [lost(label) for label in labels] == [[0], []]


def test_a_page_that_is_back_is_read_by_new_mappings_alone(path: Path) -> None:
    view = mapped(path, 0, PAGE)
    os.truncate(path, 0)
    assert view[0] == 0
    path.write_bytes(b"y" * PAGE)
    assert (view[0], mapped(path, 0, PAGE)[0]) == (0, ord("y"))


def test_kernels_read_on(tmp_path: Path) -> None:
    """Without the interpreter's lock, in any thread."""
    path, data = tmp_path / "x", encode_records([b"12345"] * 4000)
    path.write_bytes(data)
    label, found = object(), []
    view = mapped(path, 0, len(data), label)
    os.truncate(path, 4 * PAGE)
    thread = Thread(target=lambda: found.append(scan_frames(view, 0, True, 1 << 20)))
    thread.start()
    thread.join()
    ((spans, end, status, *_),) = found
    whole = 4 * PAGE // 21
    assert (len(spans) // 16, end, status) == (whole, whole * 21, BAD_LENGTH_CRC)
    assert lost(label) == [4 * PAGE]


def test_any_number_of_mappings(path: Path) -> None:
    """Entries of the guard's tables are used again, but for those of what was lost."""
    for _ in range(2):
        labels = [object() for _ in range(2 * TABLE + 1)]
        views = [mapped(path, 0, PAGE, label) for label in labels]
        del views[5]
        os.truncate(path, 0)
        assert {view[0] for view in views} == {0}
        found = {id(label): offset for label, offset in _native.lost_pages()}
        assert [found.get(id(label)) for label in labels] == [0] * 5 + [None] + [0] * (2 * TABLE - 5)
        path.write_bytes(b"x" * PAGE)


def test_files_of_this_machine_are_safe_to_map(path: Path) -> None:
    with open(path, "rb") as file, open("/proc/self/maps", "rb") as elsewhere:
        assert _native.is_safe_to_map(file.fileno())
        assert not _native.is_safe_to_map(elsewhere.fileno())


PRELUDE = """
import faulthandler, mmap, os, signal, sys
from streamrec.kernels import _native
file = os.open(sys.argv[1], os.O_RDWR)
def is_safe(): return _native.is_safe_to_map(file)
def read_lost(make):
    view = memoryview(make())
    os.ftruncate(file, 0)
    return view[0]
def ours(): return _native.map_file(file, 0, 1)
def foreign(): return mmap.mmap(file, 1)
"""
SENT = "os.kill(os.getpid(), signal.SIGBUS)"


@pytest.mark.parametrize(
    ("program", "code", "out", "err"),
    [
        ("is_safe(); read_lost(foreign)", -signal.SIGBUS, "", ""),
        ("faulthandler.enable(); print(is_safe(), read_lost(ours))", 0, "True 0", ""),
        ("print(is_safe()); faulthandler.enable(); print(is_safe())", 0, "True\nFalse", ""),
        *[
            pytest.param(*values, marks=pytest.mark.thorough)
            for values in (
                ("faulthandler.enable(); is_safe(); read_lost(foreign)", -signal.SIGBUS, "", "Bus error"),
                (f"is_safe(); {SENT}", -signal.SIGBUS, "", ""),
                (f"signal.signal(signal.SIGBUS, lambda *_: print('handled')); is_safe(); {SENT}", 0, "handled", ""),
                (f"signal.signal(signal.SIGBUS, signal.SIG_IGN); is_safe(); {SENT}", 0, "", ""),
            )
        ],
    ],
)
def test_other_bus_errors_go_where_they_went(path: Path, program: str, code: int, out: str, err: str) -> None:
    sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":handle_sigbus=0"
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ASAN_OPTIONS": sanitizer},
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert out in done.stdout
    assert err in done.stderr
