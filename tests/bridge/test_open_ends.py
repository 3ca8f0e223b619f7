"""What a program leaves open when it ends, and iterators that are left before their end."""

import subprocess
import sys
from pathlib import Path

import pytest

import streamrec
from streamrec import Dataset, TFRecordDataset


@pytest.mark.parametrize("ending", ["normal", "error", "exit"])
@pytest.mark.parametrize("case", ["cached", "sync_writer", "async_writer"])
def test_what_is_open_when_a_program_ends_leaves_nothing(tmp_path: Path, case: str, ending: str) -> None:
    """At most one line, and no file."""
    (tmp_path / "x.tfrecord").write_bytes(streamrec.encode_records([b"%d" % number for number in range(50_000)]))
    command = [sys.executable, "-m", "tests.bridge.scripts.open_ends", str(tmp_path), case, ending]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == {"normal": 0, "error": 1, "exit": 7}[ending]
    said = [line for line in done.stderr.splitlines() if "tfrecord:" in line or "cleanup" in line]
    assert len(said) == (case != "cached"), done.stderr
    assert len(done.stderr.splitlines()) <= 1 + 8 * (ending == "error"), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["x.tfrecord"]
    if case != "cached":
        assert "was dropped without close()" in done.stderr


def test_a_dropped_async_iterator_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "x.tfrecord").write_bytes(streamrec.encode_records([b"%d" % number for number in range(50_000)]))
    command = [sys.executable, "-W", "error::ResourceWarning", "-m", "tests.bridge.scripts.open_ends", str(tmp_path)]
    done = subprocess.run(
        [*command, "dropped_iterators", "normal"], capture_output=True, text=True, check=False, timeout=60
    )
    assert "ResourceWarning" not in done.stderr
    assert done.returncode == 0


def test_closing_raises_no_error_of_elements_not_yet_taken(tmp_path: Path) -> None:
    """A damaged record further on, a function that will fail: the consumer had enough before."""
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
