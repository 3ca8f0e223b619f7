"""`streamrec cp`: a copy that is broken off and resumed, a choice of names, a limit of speed."""

from pathlib import Path

import pytest

import streamrec
from streamrec.cli.commands.cp import Bandwidth, Choice
from tests.cli.conftest import Bucket, CommandLine, interrupt, start_command, still_running


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Forty shards of 100 records."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(40):
        name = folder / f"{'train' if number % 4 else 'test'}-{number:02}.tfrecord"
        with streamrec.TFRecordWriter(str(name)) as writer:
            for record in range(100):
                writer.write(b"%d-%d" % (number, record))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_copy_that_fails_goes_on_where_it_ended(
    shards: Path, tmp_path: Path, cli: CommandLine
) -> None:
    last = sorted(shards.iterdir())[-1]
    good = last.read_bytes()
    last.write_bytes(good[:-1] + b"x")
    target = tmp_path / "copy"
    arguments = ["cp", "--resume", "-j", "1", shards, f"{target}/"]
    cli.fails(1, last.name, *arguments)
    copied = contents(target)
    assert len(copied) == 39
    first = target / sorted(copied)[0]
    before = first.stat()
    last.write_bytes(good)
    done = cli.succeeds(*arguments)
    assert "39 shards of 40 are copied already" in done.err
    assert done.out.startswith("1 shard, 100 records")
    assert contents(target) == contents(shards)
    assert first.stat() == before, "it was not copied again"
    assert "40 shards of 40 are copied already" in cli.succeeds(*arguments).err


def test_ctrl_c_keeps_complete_copies_to_resume_from(
    shards: Path, bucket: Bucket, cli: CommandLine, tmp_path: Path
) -> None:
    there = [option.replace("-o", "-O") for option in bucket.options]
    target = f"{bucket.url}copy/"
    with start_command(
        "cp", "--resume", "-j", "1", "--bandwidth", "2kB", *there, shards, target
    ) as process:
        while not cli("ls", *bucket.options, target).out.count(".tfrecord"):
            still_running(process)
        interrupt(process)
    done = cli.succeeds("cp", "--resume", *there, shards, target)
    assert "are copied already" in done.err
    cli.succeeds("cp", *bucket.options, target, f"{tmp_path}/back/")
    assert contents(tmp_path / "back") == contents(shards)


def test_resume_refuses_a_directory_that_is_not_a_copy(
    shards: Path, tmp_path: Path, cli: CommandLine
) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "test-00.tfrecord").write_bytes(b"other")
    cli.fails(4, "this is not a copy of", "cp", "--resume", shards, f"{tmp_path}/copy/")
    assert contents(tmp_path / "copy") == {"test-00.tfrecord": b"other"}
    cli.fails(2, "--overwrite replaces it", "cp", "--resume", "--overwrite", shards, "copy/")


def test_only_chosen_names_are_copied(shards: Path, tmp_path: Path, cli: CommandLine) -> None:
    target = f"{tmp_path}/copy/"
    cli.succeeds("cp", "--include", "train-*", "--exclude", "*-0?.tfrecord", shards, target)
    names = set(contents(tmp_path / "copy"))
    assert names == {f"train-{number}.tfrecord" for number in range(10, 40) if number % 4}
    cli.fails(2, "leave no shard", "cp", "--include", "nothing*", shards, target)


def test_names_are_matched_from_their_end() -> None:
    choice = Choice(include=("a/*",))
    assert choice.takes("s3://b/a/x")
    assert not choice.takes("s3://b/a/c/x")


def test_bytes_are_spread_over_time() -> None:
    limit = Bandwidth(100)
    assert [limit.delay(50, now) for now in (0.0, 0.0, 2.0)] == [0.5, 1.0, 0.5]
    assert Bandwidth(None).delay(10**9, 0.0) == 0.0
