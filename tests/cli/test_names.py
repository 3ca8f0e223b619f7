"""What commands say of folders with several splits, and of shards that are missing, as the names of
the others tell.
"""

import json
from pathlib import Path

import pytest

import streamrec
from tests.cli.conftest import Call


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


LOOKING = [["count"], ["info"], ["stat"], ["verify"], ["head"], ["cat"]]


@pytest.mark.parametrize("command", LOOKING, ids=lambda command: command[0])
def test_a_command_that_looks_says_which_splits_it_takes_together(
    command: list[str], folder: Path, called: Call
) -> None:
    said = "several splits, test (1 shard) and train (2 shards), and are read together"
    for source in (folder, f"{folder}/", f"{folder}/*.tfrecord*"):
        assert said in called.well(*command, source).err
    assert "splits" not in called.well(*command, folder, "--split", "train").err
    assert "splits" not in called.well(*command, folder, "--split", "all").err
    assert "splits" not in called.well(*command, f"{folder}/ints-test.tfrecord*").err
    assert "splits" not in called.well(*command, folder, "-q").err


WRITING = [["convert", "all.jsonl"], ["reshard", "new/"], ["index", "all.index"]]


@pytest.mark.parametrize(
    "command", [*WRITING, ["manifest", "all.json"]], ids=lambda command: command[0]
)
def test_a_command_that_writes_asks_for_the_split(
    command: list[str], folder: Path, tmp_path: Path, called: Call
) -> None:
    name, goal = command
    target = f"{tmp_path}/out/{goal}"
    (tmp_path / "out").mkdir()
    said = "several splits, test (1 shard) and train (2 shards): --split test reads one of them"
    called.refused(2, said, name, folder, target)
    assert list((tmp_path / "out").iterdir()) == []
    called.refused(2, "not one split 'dev' among these", name, folder, target, "--split", "dev")
    assert "ints-test" not in called.well(name, folder, target, "--split", "train", "--json").out
    called.well(name, folder, f"{tmp_path}/out/2{goal}", "--split", "all")


def test_splits_are_counted_one_by_one(folder: Path, called: Call) -> None:
    assert called.well("count", folder, "--split", "train").out == "2\n"
    assert called.well("count", folder, "--split", "test").out == "1\n"
    assert called.well("count", f"{folder}/*tfrecord*", "--split", "test").out == "1\n"


def test_two_versions_are_not_taken_for_one_data_set(folder: Path, called: Call) -> None:
    write_numbered(folder.parent / "2.0.0" / "ints-train.tfrecord", [0], 1)
    said = "1.0.0/test (1 shard), 1.0.0/train (2 shards) and 2.0.0/train (1 shard)"
    assert said in called.well("count", folder.parent).err
    called.refused(2, "not one split 'train'", "count", folder.parent, "--split", "train")
    assert called.well("count", folder.parent, "--split", "2.0.0/train").out == "1\n"


def test_splits_in_other_names_are_told_and_may_be_chosen(tmp_path: Path, called: Call) -> None:
    for name in ("train_0.tfrecord", "train_1.tfrecord", "val_0.tfrecord"):
        with streamrec.TFRecordWriter(tmp_path / name) as writer:
            writer.write(b"x")
    done = called.well("count", tmp_path)
    assert done.out == "3\n"
    assert "several splits, train (2 shards) and val (1 shard)" in done.err
    assert called.well("count", tmp_path, "--split", "val").out == "1\n"


@pytest.fixture
def incomplete(tmp_path: Path) -> Path:
    write_numbered(tmp_path / "x-train.tfrecord", [0, 1, 3], 4)
    return tmp_path


MISSING = "1 of 4 shards is missing, as the names tell: x-train.tfrecord-00002-of-00004"


@pytest.mark.parametrize("source", ["", "/x-train.tfrecord-*", "/x-train.tfrecord-0000?-of*"])
def test_a_missing_shard_is_told(source: str, incomplete: Path, called: Call) -> None:
    name = f"{incomplete}{source}"
    done = called("verify", name)
    assert done.code == 1
    assert MISSING in done.out
    assert f"incomplete   {incomplete}/x-train.tfrecord-*-of-00004: {MISSING}\n" in (
        called.well("info", name).out
    )
    done = called.well("count", name)
    assert done.out == "3\n"
    assert done.err.count(MISSING) == 1
    for command in ("stat", "head"):
        assert called.well(command, name).err.count(MISSING) == 1


def test_a_missing_shard_is_told_in_json(incomplete: Path, called: Call) -> None:
    missing = f"{incomplete}/x-train.tfrecord-00002-of-00004"
    done = called("verify", incomplete, "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert not found["ok"]
    assert [(each["path"], each["kind"]) for each in found["problems"]] == [(missing, "missing")]
    for command in ("info", "count"):
        [gap] = json.loads(called.well(command, incomplete, "--json").out)["gaps"]
        assert gap["examples"] == [missing]


def test_a_manifest_of_a_set_with_a_gap_is_no_proof_that_it_is_whole(
    incomplete: Path, called: Call
) -> None:
    called.well("manifest", incomplete, incomplete / "manifest.json")
    for source in (incomplete, incomplete / "manifest.json"):
        done = called("verify", source, "--json")
        assert done.code == 1
        [problem] = json.loads(done.out)["problems"]
        assert problem["path"].endswith("x-train.tfrecord-00002-of-00004")
        assert MISSING in called.well("count", source).err


def test_names_that_a_shell_has_made_of_a_pattern_are_a_pattern(
    incomplete: Path, called: Call
) -> None:
    names = sorted(incomplete.glob("x-*"))
    assert MISSING in called.well("count", *names).err
    assert called("verify", *names).code == 1
    write_numbered(incomplete / "x-train.tfrecord", [2], 4)
    assert called.well("verify", *names).err == "", "a part that was named on purpose"


def test_two_runs_in_one_folder_are_told(incomplete: Path, called: Call) -> None:
    write_numbered(incomplete / "x-train.tfrecord", [2], 4)
    write_numbered(incomplete / "x-train.tfrecord", [0, 1], 2)
    said = "tell different totals (2 of 2 shards and 4 of 4 shards)"
    assert said in called.well("count", incomplete).err
    assert said in called.well("info", incomplete).out
    done = called("verify", incomplete)
    assert (done.code, said in done.out) == (1, True)


def test_a_split_is_checked_alone(incomplete: Path, called: Call) -> None:
    write_numbered(incomplete / "x-test.tfrecord", [0], 1)
    called.well("verify", incomplete, "--split", "test")
    assert called("verify", incomplete, "--split", "train").code == 1


def test_commands_understand_a_number_of_shards(folder: Path, called: Call) -> None:
    assert called.well("count", f"{folder}/ints-train.tfrecord@2").out == "2\n"
    assert called.well("verify", f"{folder}/ints-train.tfrecord@2").err == ""
    called.refused(
        3, "ints-train.tfrecord-00000-of-00003", "count", f"{folder}/ints-train.tfrecord@3"
    )


def test_records_of_an_index_are_shown_by_number(
    folder: Path, tmp_path: Path, called: Call
) -> None:
    index = tmp_path / "train.index"
    called.well("index", folder, index, "--split", "train")
    assert "ints-train.tfrecord-00001" in called.well("cat", "--records", "1", index).out
    assert called.well("verify", index).code == 0
