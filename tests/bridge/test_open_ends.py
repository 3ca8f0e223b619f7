"""Programs that end with something open, and iterators that are left before their end."""

import subprocess
import sys
from pathlib import Path

import pytest

import streamrec
from streamrec import Dataset, TFRecordDataset


def end_program(folder: Path, case: str, ending: str, *flags: str) -> "subprocess.CompletedProcess[str]":
    (folder / "x.tfrecord").write_bytes(streamrec.encode_records([b"%d" % number for number in range(50_000)]))
    command = [sys.executable, *flags, "-m", "tests.bridge.scripts.open_ends", str(folder), case, ending]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("ending", ["normal", "error", "exit"])
@pytest.mark.parametrize("case", ["cached", "sync_writer", "async_writer"])
def test_a_program_that_ends_with_something_open_prints_at_most_one_line_and_leaves_no_file(
    tmp_path: Path, case: str, ending: str
) -> None:
    done = end_program(tmp_path, case, ending)
    assert done.returncode == {"normal": 0, "error": 1, "exit": 7}[ending]
    lines = [line for line in done.stderr.splitlines() if "tfrecord:" in line or "cleanup" in line]
    assert len(lines) == (case != "cached"), done.stderr
    assert len(done.stderr.splitlines()) <= 1 + 8 * (ending == "error"), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["x.tfrecord"]
    if case != "cached":
        assert "was dropped without close()" in done.stderr


def test_a_dropped_async_iterator_leaves_no_file_open(tmp_path: Path) -> None:
    done = end_program(tmp_path, "dropped_iterators", "normal", "-W", "error::ResourceWarning")
    assert "ResourceWarning" not in done.stderr
    assert done.returncode == 0


def test_closing_raises_no_error_of_elements_not_yet_taken(tmp_path: Path) -> None:
    """The consumer stops before a damaged record, or before an element for which a function will fail."""
    data = bytearray(streamrec.encode_records([b"%d" % number for number in range(30_000)]))
    data[-5] ^= 1
    (tmp_path / "x.tfrecord").write_bytes(data)
    for dataset in (
        TFRecordDataset(str(tmp_path / "x.tfrecord")),
        Dataset.range(10_000).map(lambda number: 1 // (9_000 - int(number))),
    ):
        for _ in range(10):
            with dataset.batch(10).iterate() as batches:
                next(batches)
        with pytest.raises((streamrec.CorruptRecordError, ZeroDivisionError)):
            list(dataset)
