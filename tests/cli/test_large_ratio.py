"""A huge record is refused, also one out of a small compressed file, and takes little memory."""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import streamrec
from streamrec.cli.formats import RECORD_BYTES
from streamrec.cli.formats.gunzip import MAX_RATIO, SMALL_BYTES
from tests.cli.conftest import PEAK_MEMORY_PROGRAM, CommandLine
from tests.runs import in_new_interpreter

HUGE_BYTES = 300 << 20


class Zeros(io.RawIOBase):
    """So many zeros, which are not in memory."""

    def __init__(self, left: int) -> None:
        self._left = left

    def read(self, size: int = -1) -> bytes:
        size = min(size, self._left)
        self._left -= size
        return bytes(size)


def write_huge_record(path: Path) -> Path:
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path, "w:gz") as tar:
            info = tarfile.TarInfo("0001.bin")
            info.size = HUGE_BYTES
            tar.addfile(info, Zeros(HUGE_BYTES))  # type: ignore[arg-type]
        return path
    with gzip.open(path, "wb") as file:
        file.write(b'{"text": ["')
        for _ in range(HUGE_BYTES >> 20):
            file.write(b"a" * (1 << 20))
        file.write(b'"]}\n')
    return path


@pytest.mark.parametrize("ending", ["tar.gz", "jsonl.gz"])
@pytest.mark.parametrize("target", ["tfrecord", "jsonl"])
def test_huge_record_of_a_small_file_is_refused(tmp_path: Path, ending: str, target: str) -> None:
    source = write_huge_record(tmp_path / f"a.{ending}")
    assert source.stat().st_size < HUGE_BYTES // 500
    code, kilobytes = in_new_interpreter(
        PEAK_MEMORY_PROGRAM, "convert", source, tmp_path / f"b.{target}"
    ).split()[-2:]
    assert code == "1"
    assert int(kilobytes) << 10 < HUGE_BYTES
    assert not (tmp_path / f"b.{target}").exists()


def test_the_error_names_the_limit_and_the_file(tmp_path: Path, cli: CommandLine) -> None:
    source = write_huge_record(tmp_path / "a.tar.gz")
    said = f"above {SMALL_BYTES >> 20} MiB the limit is {MAX_RATIO} times"
    done = cli.fails(1, said, "convert", source, tmp_path / "b.tfrecord")
    assert "record 0: " in done.err
    assert "unpack the file with gunzip" in done.err
    assert str(source) in done.err


def test_many_small_records_may_have_any_ratio(tmp_path: Path, cli: CommandLine) -> None:
    """Each record is bounded, and not the file."""
    source = tmp_path / "a.jsonl.gz"
    line = json.dumps({"text": ["a" * (1 << 20)]}).encode() + b"\n"
    with gzip.open(source, "wb") as file:
        for _ in range(2 * SMALL_BYTES >> 20):
            file.write(line)
    cli.succeeds("convert", source, tmp_path / "b.tfrecord")
    records: Any = streamrec.TFRecordDataset(tmp_path / "b.tfrecord")
    assert sum(1 for _ in records) == 2 * SMALL_BYTES >> 20


def write_large_record(path: Path, size: int) -> Path:
    """A file that is not compressed, with a small record and one of this many bytes."""
    if path.suffix == ".tar":
        with tarfile.open(path, "w") as tar:
            for name, count in (("0001.bin", 10), ("0002.bin", size)):
                info = tarfile.TarInfo(name)
                info.size = count
                tar.addfile(info, Zeros(count))  # type: ignore[arg-type]
        return path
    with path.open("wb") as file:
        for count in (10, size):
            file.write(json.dumps({"text": ["a" * count]}).encode() + b"\n")
    return path


@pytest.mark.parametrize("ending", ["tar", "jsonl"])
@pytest.mark.parametrize("target", ["tfrecord", "jsonl"])
def test_a_record_that_would_take_several_times_its_size_is_refused(
    tmp_path: Path, cli: CommandLine, ending: str, target: str
) -> None:
    source, new = write_large_record(tmp_path / f"a.{ending}", HUGE_BYTES), tmp_path / f"b.{target}"
    code, kilobytes = in_new_interpreter(PEAK_MEMORY_PROGRAM, "convert", source, new).split()[-2:]
    assert code == "1"
    assert int(kilobytes) << 10 < 1.2 * HUGE_BYTES
    assert not new.exists()
    said = f"record 1: a record of more than {RECORD_BYTES:,} bytes"
    done = cli.fails(1, said, "convert", source, new)
    assert "--record-limit" in done.err
    assert str(source) in done.err


@pytest.mark.parametrize("target", ["tar", "jsonl", "parquet"])
def test_a_large_record_of_a_shard_is_refused_by_number_and_name(
    tmp_path: Path, cli: CommandLine, target: str
) -> None:
    """Neither a shard before it nor a small record of its own shard counts."""
    rows = [[b"a", b"b"], [b"c", bytes(1 << 20)]]
    for number, values in enumerate(rows):
        records = [streamrec.encode_example({"x": value}) for value in values]
        (tmp_path / f"{number}").write_bytes(streamrec.encode_records(records))
    words = ["convert", "--record-limit", "1MB", tmp_path / "0", tmp_path / "1"]
    new = tmp_path / f"new.{target}"
    done = cli.fails(1, "record 1: a record of more than 1,000,000 bytes", *words, new)
    assert f"(in {tmp_path}/1)" in done.err
    assert not new.exists()
    cli.succeeds(*words, tmp_path / "new.tfrecord")


@pytest.mark.parametrize("ending", ["tar", "jsonl", "tar.gz"])
def test_the_limit_of_records_is_raised_and_lowered(
    tmp_path: Path, cli: CommandLine, ending: str
) -> None:
    source = write_large_record(tmp_path / f"a.{ending.removesuffix('.gz')}", 1 << 20)
    if ending.endswith(".gz"):
        source.with_name(f"a.{ending}").write_bytes(gzip.compress(source.read_bytes()))
        source = source.with_name(f"a.{ending}")
    new = tmp_path / "b.tfrecord"
    cli.fails(1, "more than 500,000 bytes", "convert", "--record-limit", "500kB", source, new)
    cli.succeeds("convert", "--record-limit", "2MB", source, new)
    records: Any = streamrec.TFRecordDataset(new)
    assert [len(record) > 1 << 20 for record in records] == [False, True]
