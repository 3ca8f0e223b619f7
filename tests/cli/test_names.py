"""What commands say of folders with several splits, and of shards that are missing, as the names of
the others tell.
"""

import json
from pathlib import Path

import pytest

import streamrec
from tests.cli.conftest import CommandLine


def write_numbered(stem: Path | str, numbers: list[int], total: int) -> None:
    for number in numbers:
        path = Path(f"{stem}-{number:05d}-of-{total:05d}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with streamrec.TFRecordWriter(path) as writer:
            writer.write(streamrec.encode_example({"name": [path.name.encode()]}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of TensorFlow Datasets: two shards of train, one of test."""
    folder = tmp_path / "ints" / "1.0.0"
    write_numbered(folder / "ints-train.tfrecord", [0, 1], 2)
    write_numbered(folder / "ints-test.tfrecord", [0], 1)
    (folder / "dataset_info.json").write_text("{}")
    return folder


READING_COMMANDS = [["count"], ["info"], ["stat"], ["verify"], ["head"], ["cat"]]


@pytest.mark.parametrize("command", READING_COMMANDS, ids=lambda command: command[0])
def test_a_command_that_looks_says_which_splits_it_takes_together(
    command: list[str], folder: Path, cli: CommandLine
) -> None:
    said = "several splits, test (1 shard) and train (2 shards), and are read together"
    for source in (folder, f"{folder}/", f"{folder}/*.tfrecord*"):
        assert said in cli.succeeds(*command, source).err
    assert "splits" not in cli.succeeds(*command, folder, "--split", "train").err
    assert "splits" not in cli.succeeds(*command, folder, "--split", "all").err
    assert "splits" not in cli.succeeds(*command, f"{folder}/ints-test.tfrecord*").err
    assert "splits" not in cli.succeeds(*command, folder, "-q").err


WRITING_COMMANDS = [["convert", "all.jsonl"], ["reshard", "new/"], ["index", "all.index"]]


@pytest.mark.parametrize(
    "command", [*WRITING_COMMANDS, ["manifest", "all.json"]], ids=lambda command: command[0]
)
def test_a_command_that_writes_asks_for_the_split(
    command: list[str], folder: Path, tmp_path: Path, cli: CommandLine
) -> None:
    name, goal = command
    target = f"{tmp_path}/out/{goal}"
    (tmp_path / "out").mkdir()
    said = "several splits, test (1 shard) and train (2 shards): --split test reads one of them"
    cli.fails(2, said, name, folder, target)
    assert list((tmp_path / "out").iterdir()) == []
    cli.fails(
        2, "'dev' does not name exactly one of its splits", name, folder, target, "--split", "dev"
    )
    assert "ints-test" not in cli.succeeds(name, folder, target, "--split", "train", "--json").out
    cli.succeeds(name, folder, f"{tmp_path}/out/2{goal}", "--split", "all")


def test_splits_are_counted_one_by_one(folder: Path, cli: CommandLine) -> None:
    assert cli.succeeds("count", folder, "--split", "train").out == "2\n"
    assert cli.succeeds("count", folder, "--split", "test").out == "1\n"
    assert cli.succeeds("count", f"{folder}/*tfrecord*", "--split", "test").out == "1\n"


def test_two_versions_are_not_taken_for_one_data_set(folder: Path, cli: CommandLine) -> None:
    write_numbered(folder.parent / "2.0.0" / "ints-train.tfrecord", [0], 1)
    said = "1.0.0/test (1 shard), 1.0.0/train (2 shards) and 2.0.0/train (1 shard)"
    assert said in cli.succeeds("count", folder.parent).err
    cli.fails(
        2,
        "'train' does not name exactly one of its splits",
        "count",
        folder.parent,
        "--split",
        "train",
    )
    assert cli.succeeds("count", folder.parent, "--split", "2.0.0/train").out == "1\n"


def test_splits_in_other_names_are_told_and_may_be_chosen(tmp_path: Path, cli: CommandLine) -> None:
    for name in ("train_0.tfrecord", "train_1.tfrecord", "val_0.tfrecord"):
        with streamrec.TFRecordWriter(tmp_path / name) as writer:
            writer.write(b"x")
    done = cli.succeeds("count", tmp_path)
    assert done.out == "3\n"
    assert "several splits, train (2 shards) and val (1 shard)" in done.err
    assert cli.succeeds("count", tmp_path, "--split", "val").out == "1\n"


@pytest.fixture
def incomplete_folder(tmp_path: Path) -> Path:
    write_numbered(tmp_path / "x-train.tfrecord", [0, 1, 3], 4)
    return tmp_path


MISSING_SHARD = "1 of 4 shards is missing, as the names tell: x-train.tfrecord-00002-of-00004"


@pytest.mark.parametrize("source", ["", "/x-train.tfrecord-*", "/x-train.tfrecord-0000?-of*"])
def test_a_missing_shard_is_told(source: str, incomplete_folder: Path, cli: CommandLine) -> None:
    name = f"{incomplete_folder}{source}"
    done = cli("verify", name)
    assert done.code == 1
    assert MISSING_SHARD in done.out
    assert f"incomplete   {incomplete_folder}/x-train.tfrecord-*-of-00004: {MISSING_SHARD}\n" in (
        cli.succeeds("info", name).out
    )
    done = cli.succeeds("count", name)
    assert done.out == "3\n"
    assert done.err.count(MISSING_SHARD) == 1
    for command in ("stat", "head"):
        assert cli.succeeds(command, name).err.count(MISSING_SHARD) == 1


def test_a_missing_shard_is_told_in_json(incomplete_folder: Path, cli: CommandLine) -> None:
    missing = f"{incomplete_folder}/x-train.tfrecord-00002-of-00004"
    done = cli("verify", incomplete_folder, "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert not found["ok"]
    assert [(each["path"], each["kind"]) for each in found["problems"]] == [(missing, "missing")]
    for command in ("info", "count"):
        [gap] = json.loads(cli.succeeds(command, incomplete_folder, "--json").out)["gaps"]
        assert gap["examples"] == [missing]


def test_a_manifest_of_a_set_with_a_gap_is_no_proof_that_it_is_whole(
    incomplete_folder: Path, cli: CommandLine
) -> None:
    cli.succeeds("manifest", incomplete_folder, incomplete_folder / "manifest.json")
    for source in (incomplete_folder, incomplete_folder / "manifest.json"):
        done = cli("verify", source, "--json")
        assert done.code == 1
        [problem] = json.loads(done.out)["problems"]
        assert problem["path"].endswith("x-train.tfrecord-00002-of-00004")
        assert MISSING_SHARD in cli.succeeds("count", source).err


def test_names_that_a_shell_has_made_of_a_pattern_are_a_pattern(
    incomplete_folder: Path, cli: CommandLine
) -> None:
    names = sorted(incomplete_folder.glob("x-*"))
    assert MISSING_SHARD in cli.succeeds("count", *names).err
    assert cli("verify", *names).code == 1
    write_numbered(incomplete_folder / "x-train.tfrecord", [2], 4)
    assert cli.succeeds("verify", *names).err == "", "a part that was named on purpose"


def test_two_runs_in_one_folder_are_told(incomplete_folder: Path, cli: CommandLine) -> None:
    write_numbered(incomplete_folder / "x-train.tfrecord", [2], 4)
    write_numbered(incomplete_folder / "x-train.tfrecord", [0, 1], 2)
    said = "tell different totals (2 of 2 shards and 4 of 4 shards)"
    assert said in cli.succeeds("count", incomplete_folder).err
    assert said in cli.succeeds("info", incomplete_folder).out
    done = cli("verify", incomplete_folder)
    assert (done.code, said in done.out) == (1, True)


def test_a_split_is_checked_alone(incomplete_folder: Path, cli: CommandLine) -> None:
    write_numbered(incomplete_folder / "x-test.tfrecord", [0], 1)
    cli.succeeds("verify", incomplete_folder, "--split", "test")
    assert cli("verify", incomplete_folder, "--split", "train").code == 1


def test_commands_understand_a_number_of_shards(folder: Path, cli: CommandLine) -> None:
    assert cli.succeeds("count", f"{folder}/ints-train.tfrecord@2").out == "2\n"
    assert cli.succeeds("verify", f"{folder}/ints-train.tfrecord@2").err == ""
    # Which of the three missing shards is found first depends on the disk.
    cli.fails(3, "-of-00003: there is no such file", "count", f"{folder}/ints-train.tfrecord@3")


def test_records_of_an_index_are_shown_by_number(
    folder: Path, tmp_path: Path, cli: CommandLine
) -> None:
    index = tmp_path / "train.index"
    cli.succeeds("index", folder, index, "--split", "train")
    assert "ints-train.tfrecord-00001" in cli.succeeds("cat", "--records", "1", index).out
    assert cli.succeeds("verify", index).code == 0
