"""The journal of a data set tells a process what others have completed since it listed it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamrec.storage.cache import journal
from streamrec.storage.cache.files import open_directory
from streamrec.storage.cache.journal import JournalReader, add_line
from streamrec.storage.cache.names import JOURNAL


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    opened = open_directory(str(tmp_path))
    yield opened
    os.close(opened)


def test_each_reader_gets_each_new_line_once(directory: int) -> None:
    one = JournalReader()
    other = JournalReader()
    add_line("a", directory)
    assert one.new_lines(directory) == ["a"]
    add_line("b", directory)
    assert one.new_lines(directory) == ["b"]
    assert one.new_lines(directory) == ()
    assert other.new_lines(directory) == ["a", "b"]


def test_a_reader_skips_what_was_there_when_it_listed_the_directory(directory: int) -> None:
    add_line("a", directory)
    reader = JournalReader()
    reader.skip(directory)
    add_line("b", directory)
    assert reader.new_lines(directory) == ["b"]


@pytest.mark.parametrize("written", range(len("\nblock\n")))
def test_a_line_that_a_killed_process_left_unfinished_spoils_no_other(
    written: int, directory: int, tmp_path: Path
) -> None:
    reader = JournalReader()
    add_line("first", directory)
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(b"\nblock\n"[:written])
    before = reader.new_lines(directory)
    add_line("last", directory)
    after = reader.new_lines(directory)
    assert before is not None
    assert after is not None
    lines = [*before, *after]
    assert lines[0] == "first"
    assert lines[-1] == "last"
    assert len(lines) <= 3


def test_a_reader_whose_journal_was_removed_lists_again(directory: int, tmp_path: Path) -> None:
    add_line("a", directory)
    reader = JournalReader()
    reader.skip(directory)
    add_line("lost", directory)
    os.rename(tmp_path / JOURNAL, tmp_path / "kept")  # its number is not given to the next one
    assert reader.new_lines(directory) is None
    add_line("b", directory)
    assert reader.new_lines(directory) is None
    reader.skip(directory)
    add_line("c", directory)
    assert reader.new_lines(directory) == ["c"]


def test_a_journal_that_is_cut_is_not_taken_for_a_whole_one(directory: int, tmp_path: Path) -> None:
    reader = JournalReader()
    add_line("a", directory)
    reader.skip(directory)
    os.truncate(tmp_path / JOURNAL, 0)
    assert reader.new_lines(directory) is None


def test_a_journal_that_is_too_long_is_removed(
    directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_BYTES", 20)
    for _ in range(100):
        add_line("a line", directory)
        path = tmp_path / JOURNAL
        assert not path.exists() or path.stat().st_size <= 20


def test_a_journal_is_private_and_a_link_is_not_followed(directory: int, tmp_path: Path) -> None:
    add_line("a", directory)
    assert (tmp_path / JOURNAL).stat().st_mode & 0o777 == 0o600
    (tmp_path / JOURNAL).unlink()
    (tmp_path / JOURNAL).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic link"):
        add_line("b", directory)
    assert not (tmp_path / "mine").exists()


def test_a_pipe_of_its_name_makes_no_process_wait(directory: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / JOURNAL)
    with pytest.raises(OSError, match="No such device"):
        add_line("a", directory)
    assert not JournalReader().new_lines(directory)
