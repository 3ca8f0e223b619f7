"""What commands say of files that they replace, of others that stay among the new ones, and of
manifests that describe these.
"""

from pathlib import Path

import pytest

import streamrec
from tests.cli.conftest import CommandLine


def write_shards(folder: Path, stem: str, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        with streamrec.TFRecordWriter(folder / f"{stem}-{number:05d}.tfrecord") as writer:
            writer.write(streamrec.encode_example({"n": number}))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_shards(tmp_path / "source", "new", 2)
    return tmp_path / "source"


@pytest.mark.parametrize("command", ["reshard", "convert", "cp"])
def test_the_command_counts_replaced_files_and_names_older_ones_that_stay(
    command: str, source: Path, tmp_path: Path, cli: CommandLine
) -> None:
    write_shards(tmp_path / "out", "new", 5)
    target = f"{tmp_path}/out/" if command == "cp" else f"{tmp_path}/out/new-{{shard:05d}}.tfrecord"
    how = [] if command == "cp" else ["--shard-records", "1"]
    done = cli.succeeds(command, source, target, "--overwrite", *how)
    assert "2 older files replaced" in done.err
    assert (
        f"3 older shards left next to the new ones: {tmp_path}/out/new-00002.tfrecord" in done.err
    )


@pytest.mark.parametrize("command", ["reshard", "convert"])
def test_a_manifest_of_shards_that_stay_is_not_replaced(
    command: str, tmp_path: Path, cli: CommandLine
) -> None:
    write_shards(tmp_path / "d", "old", 3)
    manifest = tmp_path / "d" / "manifest.json"
    cli.succeeds("manifest", tmp_path / "d", manifest)
    before = manifest.read_bytes()
    target = f"{tmp_path}/d/new-{{shard:05d}}.tfrecord"
    said = f"describes 3 other shards that would stay, such as {tmp_path}/d/old-00000.tfrecord"
    cli.fails(2, said, command, f"{tmp_path}/d/old-*", target, "--overwrite")
    assert manifest.read_bytes() == before
    assert not list((tmp_path / "d").glob("new-*"))
    assert cli.succeeds("count", tmp_path / "d").out == "3\n"


def test_a_manifest_that_was_named_is_replaced_with_a_note(
    tmp_path: Path, cli: CommandLine
) -> None:
    write_shards(tmp_path / "d", "old", 3)
    for name in ("manifest.json", "own.json"):
        cli.succeeds("manifest", tmp_path / "d", tmp_path / "d" / name)
    target = f"{tmp_path}/d/new-{{shard:05d}}.tfrecord"
    own = ["--manifest", f"{tmp_path}/d/own.json"]
    source = f"{tmp_path}/d/old-*"
    done = cli.succeeds("reshard", source, target, "--overwrite", *own)
    assert "describes 3 other shards that would stay" in done.err
    assert "and is replaced" in done.err


def test_reshard_may_run_again_over_its_own_output(
    source: Path, tmp_path: Path, cli: CommandLine
) -> None:
    for records in ("1", "2"):
        done = cli.succeeds(
            "reshard", source, f"{tmp_path}/out/", "--overwrite", "--shard-records", records
        )
    assert "1 older file replaced" in done.err
    assert "1 older shard left next to the new ones" in done.err
