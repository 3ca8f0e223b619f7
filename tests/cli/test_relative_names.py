"""Every command takes the name of a file of the working directory, without `./`."""

from pathlib import Path

import pytest

import streamrec
from tests.cli.conftest import CommandLine

COMMANDS = [
    *(f"{name} a.tfrecord" for name in ("ls", "count", "info", "stat", "head", "cat", "verify")),
    *(f"{name} *.tfrecord" for name in ("ls", "count", "info", "stat", "verify")),
    "manifest a.tfrecord new.json",
    "index a.tfrecord new.index",
    "reshard a.tfrecord new.tfrecord",
    "convert a.tfrecord new.jsonl",
    "cp a.tfrecord new.tfrecord",
    "doctor --no-write a.tfrecord",
    "doctor --write a.tfrecord",
    "doctor --no-write *.tfrecord",
    "doctor --no-write .",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_name_without_a_directory(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.chdir(tmp_path)
    records = [streamrec.encode_example({"label": number}) for number in range(5)]
    Path("a.tfrecord").write_bytes(streamrec.encode_records(records))
    done = cli(*command.split())
    assert done.code == 0, done.out + done.err
    hidden = [path.name for path in tmp_path.iterdir() if "doctor" in path.name]
    assert not hidden
