"""Who may use a directory as a cache, and what a refused one keeps."""

import json
import os
from pathlib import Path

import pytest

from streamrec.storage.cache.directories import FORMAT, CacheUnusableError, Directories
from streamrec.storage.cache.names import MARKER, RUNS, SETS


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_new_cache_is_marked_and_belongs_to_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "parent" / "cache"
    Directories(str(path)).close()
    assert json.loads((path / MARKER).read_bytes()) == {"format": FORMAT}
    assert sorted(os.listdir(path)) == sorted([MARKER, RUNS, SETS])
    assert {entry.stat().st_mode & 0o077 for entry in (path, *path.iterdir())} == {0}


@pytest.mark.parametrize("found", ['{"format": 99}', "{}", "no JSON", "[1]"])
def test_a_marker_that_this_version_does_not_know_is_refused_and_kept(
    found: str, tmp_path: Path
) -> None:
    (tmp_path / MARKER).write_text(found)
    with pytest.raises(CacheUnusableError, match="another version of streamrec wrote it"):
        Directories(str(tmp_path))
    assert (tmp_path / MARKER).read_text() == found
    assert os.listdir(tmp_path) == [MARKER]


def test_a_marker_that_a_killed_process_left_empty_is_written(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_bytes(b"")
    Directories(str(tmp_path)).close()
    assert json.loads((tmp_path / MARKER).read_bytes()) == {"format": FORMAT}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not list them")
@pytest.mark.parametrize("name", [MARKER, SETS, RUNS])
def test_a_refused_directory_leaves_no_file_open(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    before = open_files()
    with pytest.raises(OSError, match=r"symbolic link|Not a directory"):
        Directories(str(tmp_path))
    assert open_files() == before
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_to_a_directory_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(CacheUnusableError, match="symbolic link"):
        Directories(str(tmp_path / "link"))
    assert os.listdir(tmp_path / "real") == []
