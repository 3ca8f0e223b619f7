"""Commands on folders of TensorFlow Datasets: slices, counts, descriptions, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest

import streamrec.tfds
from tests.cli.conftest import Call
from tests.tfds.folders import KINDS_URL, ROBOT_URL

SLICES = ["train", "test", "all", "train[:10%]", "train[7:10]", "train[-1shard]+test[1:3]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KINDS_URL, tmp_path / "kinds" / "1.0.0"))


@pytest.mark.parametrize("split", SLICES)
def test_commands_take_slices_of_splits(split: str, called: Call, tmp_path: Path) -> None:
    records = streamrec.tfds.open_sync(KINDS_URL).records(split, cycle_length=1)
    expected = list(records)
    counted = called.well("count", KINDS_URL, "--split", split)
    assert counted.out.strip() == str(len(expected))
    assert not counted.err
    target = tmp_path / "slice.tfrecord"
    called.well("convert", KINDS_URL, target, "--split", split)
    assert list(streamrec.TFRecordDataset(str(target))) == expected
    rows = called.well("cat", KINDS_URL, "--split", split, "--json").out.splitlines()
    numbers = [json.loads(row)["with/slash"] for row in rows]
    assert len(numbers) == len(expected)
    stated = json.loads(called.well("stat", KINDS_URL, "--split", split, "--json").out)
    assert stated["records"] == len(expected)


def test_counting_reads_no_shard(called: Call, folder: Path) -> None:
    for shard in folder.glob("*.tfrecord*"):
        shard.write_bytes(b"\xff" * shard.stat().st_size)
    assert called.well("count", folder, "--split", "train[:10]").out.strip() == "10"


def test_head_of_a_slice_numbers_records_from_the_shards_start(called: Call) -> None:
    shown = called.well("head", "-n", "2", KINDS_URL, "--split", "train[6:]").out
    assert "-00000-of-00003, record 6, byte " in shown
    assert "-00000-of-00003, record 7, byte " in shown


def test_info_shows_the_description(called: Call) -> None:
    shown = called.well("info", ROBOT_URL, "--split", "all").out
    assert "split train: 12 records in 3 shards" in shown
    assert "image: image[8, 8, 3], uint8, jpeg" in shown


def test_wrong_splits_name_those_that_exist(called: Call) -> None:
    said = "there is no split 'trian': the data set has train (23 records), test"
    called.refused(2, said, "count", KINDS_URL, "--split", "trian")


@pytest.mark.parametrize("command", [["verify"], ["cp"], ["reshard"]])
def test_slice_within_a_shard_is_refused_where_shards_are_whole(
    command: list[str], called: Call, tmp_path: Path
) -> None:
    target = [] if command == ["verify"] else [f"{tmp_path}/new/"]
    said = "this command takes whole shards"
    called.refused(2, said, *command, KINDS_URL, *target, "--split", "train[:3]")


def test_verify_compares_numbers_of_records_with_the_description(
    called: Call, folder: Path
) -> None:
    assert "all as the manifest says" in called.well("verify", folder, "--split", "all").out
    path = folder / "dataset_info.json"
    value = json.loads(path.read_text())
    value["splits"][0]["shardLengths"][2] = "9"
    path.write_text(json.dumps(value))
    result = called("verify", folder, "--split", "all")
    assert result.code == 1
    assert "-00002-of-00003: records: 8 where the manifest says 9" in result.out


def test_folder_with_a_damaged_description_is_read_as_a_directory(
    called: Call, folder: Path
) -> None:
    (folder / "dataset_info.json").write_text("{}")
    result = called.well("count", folder, "--split", "train")
    assert result.out.strip() == "23"
    assert "the folder is read as any directory" in result.err
