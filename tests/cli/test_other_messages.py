"""Records of another message type: every command shows or names them, and none drops them."""

import base64
import json
from pathlib import Path

import pytest

import streamrec
from streamrec import encode_example
from tests.cli.conftest import CommandLine
from tests.example.test_kinds import SCENARIO
from tests.example.wire import field

EXAMPLE = encode_example({"label": 3, "name": b"cat"})
EXTENDED_EXAMPLE = EXAMPLE + field(7, b"what an extended Example holds")


def write(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(streamrec.encode_records(records))
    return path


@pytest.fixture(params=["all", "late", "more"])
def other_message(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, int, bytes]:
    """A shard, the number of its first record that is not an Example, and that record."""
    records = {
        "all": [SCENARIO] * 3,
        "late": [EXAMPLE] * 1500 + [SCENARIO, EXAMPLE],
        "more": [EXAMPLE] * 700 + [EXTENDED_EXAMPLE],
    }[request.param]
    number = next(index for index, record in enumerate(records) if record != EXAMPLE)
    return write(tmp_path / "in.tfrecord", records), number, records[number]


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "tar", "jsonl.gz"])
@pytest.mark.parametrize("option", [[], ["--features", "label"], ["--rename", "label=class"]])
def test_convert_names_the_record_and_writes_nothing(
    other_message: tuple[Path, int, bytes], ending: str, option: list[str], cli: CommandLine
) -> None:
    path, number, record = other_message
    target = path.with_name(f"out.{ending}")
    done = cli.fails(1, f"{len(record):,} bytes", "convert", *option, path, target)
    assert f"record {number:,}: " in done.err
    assert str(path) in done.err
    assert not target.exists()


def test_convert_of_a_sample_checks_each_record(tmp_path: Path, cli: CommandLine) -> None:
    """A schema file replaces the pass that would find the record."""
    path = write(tmp_path / "in.tfrecord", [EXAMPLE] * 9 + [SCENARIO])
    schema = tmp_path / "schema.json"
    schema.write_text(cli("info", "--json", write(tmp_path / "a.tfrecord", [EXAMPLE])).out)
    target = tmp_path / "out.parquet"
    cli.fails(1, "record 9: ", "convert", "--schema", schema, path, target)


def test_info_says_what_the_records_are(tmp_path: Path, cli: CommandLine) -> None:
    path = write(tmp_path / "in.tfrecord", [SCENARIO] * 2)
    said = cli.succeeds("info", path).out
    assert "records are  bytes, not Examples" in said
    assert "another message type, with the fields 1, 2, 5" in said
    assert cli("info", "--json", path).json["kind"] == "bytes"
    mixed = write(tmp_path / "mixed.tfrecord", [EXAMPLE, EXTENDED_EXAMPLE])
    said = cli.succeeds("info", mixed).out
    assert "records are  not all of them Examples" in said
    assert "an Example ('label', 'name') with something else in it: field 7" in said
    cli.fails(2, "not all of them Examples", "info", "--python", mixed)


def test_stat_counts_no_other_message_as_an_example_without_features(
    tmp_path: Path, cli: CommandLine
) -> None:
    late = write(tmp_path / "late.tfrecord", [EXAMPLE] * 1500 + [SCENARIO])
    cli.fails(1, "record 1,500: ", "stat", late)
    cli.fails(1, "record 1,500: ", "stat", "--features", "name", late)
    done = cli.succeeds("stat", write(tmp_path / "all.tfrecord", [SCENARIO] * 3))
    assert "only lengths of records" in done.err
    assert "another message type" in done.err
    empty = write(tmp_path / "empty.tfrecord", [EXAMPLE] * 1500 + [b"", encode_example({})])
    assert "1,502 records" in cli.succeeds("stat", empty).out


def test_cat_and_head_print_all_bytes(
    other_message: tuple[Path, int, bytes], cli: CommandLine
) -> None:
    path, number, record = other_message
    line = cli.succeeds("cat", "--json", path).out.splitlines()[number]
    assert base64.b64decode(json.loads(line)["base64"]) == record
    line = cli.succeeds("head", "--json", "-n", str(number + 1), path).out.splitlines()[number]
    assert base64.b64decode(json.loads(line)["base64"]) == record


def test_raw_values_end_at_a_record_that_has_none(tmp_path: Path, cli: CommandLine) -> None:
    path = write(tmp_path / "late.tfrecord", [EXAMPLE] * 200 + [SCENARIO])
    said = "record 200: "
    done = cli.fails(1, said, "cat", "--as", "raw", "--features", "name", path)
    assert "another message type" in done.err


@pytest.mark.parametrize("command", ["cat", "reshard", "convert"])
def test_where_refuses_records_without_features(
    tmp_path: Path, command: str, cli: CommandLine
) -> None:
    path = write(tmp_path / "late.tfrecord", [EXAMPLE] * 200 + [SCENARIO])
    target = [] if command == "cat" else [tmp_path / "out.tfrecord"]
    done = cli(command, "--where", "label == 3", path, *target)
    assert done.code == 1
    assert "another message type" in done.err
    assert not target or not target[0].exists()


def test_reshard_copies_other_messages(
    other_message: tuple[Path, int, bytes], cli: CommandLine
) -> None:
    path, _, _ = other_message
    target = path.with_name("out.tfrecord")
    cli.succeeds("reshard", path, target)
    assert list(streamrec.TFRecordDataset(target)) == list(streamrec.TFRecordDataset(path))
