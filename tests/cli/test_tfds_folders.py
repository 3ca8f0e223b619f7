"""Commands on folders of TensorFlow Datasets: slices, counts, descriptions, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest

import streamrec.tfds
from streamrec import NotFoundError
from tests.cli.conftest import CommandLine
from tests.servers.real import Store
from tests.tfds.folders import KINDS_URL, ROBOT_URL

SLICES = ["train", "test", "all", "train[:10%]", "train[7:10]", "train[-1shard]+test[1:3]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KINDS_URL, tmp_path / "kinds" / "1.0.0"))


@pytest.mark.parametrize("split", SLICES)
def test_commands_take_slices_of_splits(split: str, cli: CommandLine, tmp_path: Path) -> None:
    records = streamrec.tfds.open_sync(KINDS_URL).records(split, cycle_length=1)
    expected = list(records)
    counted = cli.succeeds("count", KINDS_URL, "--split", split)
    assert counted.out.strip() == str(len(expected))
    assert not counted.err
    target = tmp_path / "slice.tfrecord"
    cli.succeeds("convert", KINDS_URL, target, "--split", split)
    assert list(streamrec.TFRecordDataset(str(target))) == expected
    rows = cli.succeeds("cat", KINDS_URL, "--split", split, "--json").out.splitlines()
    numbers = [json.loads(row)["with/slash"] for row in rows]
    assert len(numbers) == len(expected)
    stated = json.loads(cli.succeeds("stat", KINDS_URL, "--split", split, "--json").out)
    assert stated["records"] == len(expected)


def test_counting_reads_no_shard(cli: CommandLine, folder: Path) -> None:
    for shard in folder.glob("*.tfrecord*"):
        shard.write_bytes(b"\xff" * shard.stat().st_size)
    assert cli.succeeds("count", folder, "--split", "train[:10]").out.strip() == "10"


def test_head_of_a_slice_numbers_records_from_the_shards_start(cli: CommandLine) -> None:
    shown = cli.succeeds("head", "-n", "2", KINDS_URL, "--split", "train[6:]").out
    assert "-00000-of-00003, record 6, byte " in shown
    assert "-00000-of-00003, record 7, byte " in shown


def test_info_shows_the_description(cli: CommandLine) -> None:
    shown = cli.succeeds("info", ROBOT_URL, "--split", "all").out
    assert "split train: 12 records in 3 shards" in shown
    assert "image: image[8, 8, 3], uint8, jpeg" in shown


def test_wrong_splits_name_those_that_exist(cli: CommandLine) -> None:
    said = "there is no split 'trian': the data set has train (23 records), test"
    cli.fails(2, said, "count", KINDS_URL, "--split", "trian")


@pytest.mark.parametrize("command", [["verify"], ["cp"], ["reshard"]])
def test_slice_within_a_shard_is_refused_where_shards_are_whole(
    command: list[str], cli: CommandLine, tmp_path: Path
) -> None:
    target = [] if command == ["verify"] else [f"{tmp_path}/new/"]
    said = "this command takes whole shards"
    cli.fails(2, said, *command, KINDS_URL, *target, "--split", "train[:3]")


def test_verify_compares_numbers_of_records_with_the_description(
    cli: CommandLine, folder: Path
) -> None:
    assert "all as the manifest says" in cli.succeeds("verify", folder, "--split", "all").out
    path = folder / "dataset_info.json"
    value = json.loads(path.read_text())
    value["splits"][0]["shardLengths"][2] = "9"
    path.write_text(json.dumps(value))
    result = cli("verify", folder, "--split", "all")
    assert result.code == 1
    assert "-00002-of-00003: records: 8 where the manifest says 9" in result.out


def test_folder_with_a_damaged_description_is_read_as_a_directory(
    cli: CommandLine, folder: Path
) -> None:
    (folder / "dataset_info.json").write_text("{}")
    result = cli.succeeds("count", folder, "--split", "train")
    assert result.out.strip() == "23"
    assert "the folder is read as any directory" in result.err


def test_head_and_stat_name_the_classes_of_labels(cli: CommandLine) -> None:
    shown = cli.succeeds("head", "-n", "2", KINDS_URL, "--split", "train").out
    assert "label: 0 (cat)" in shown
    assert "label: 1 (dog)" in shown
    assert "objects/label: [0 (car), 1 (tree)]" in shown
    assert "label_of_7: 6\n" in shown, "classes without names are numbers"
    assert "no_label: -1\n" in shown
    assert "label: 0 (cat)" in cli.succeeds("info", KINDS_URL, "--split", "train").out
    stated = cli.succeeds("stat", KINDS_URL, "--split", "train", "--features", "label")
    assert "label: 0 (cat) 34.8%, 1 (dog) 34.8%, 2 (fish) 30.4%; 3 different" in stated.out


def test_json_has_numbers_of_classes(cli: CommandLine) -> None:
    assert cli.succeeds("head", "-n1", KINDS_URL, "--split", "train", "--json").json["label"] == [0]
    arguments = ["stat", KINDS_URL, "--split", "train", "--json", "--features"]
    [label] = cli.succeeds(*arguments, "label").json["features"]
    assert label["frequent"] == [[0, 8], [1, 8], [2, 7]]
    assert label["frequent_classes"] == ["cat", "dog", "fish"]
    [text] = cli.succeeds(*arguments, "text").json["features"]
    assert text["frequent_classes"] is None


def test_names_of_classes_cannot_control_a_terminal(cli: CommandLine, folder: Path) -> None:
    (folder / "label.labels.txt").write_text("c\x1b[31mat\ndog\nfish\n")
    assert "label: 0 (c\\x1b[31mat)" in cli.succeeds("head", "-n1", folder, "--split", "train").out
    assert "0 (c\\x1b[31mat)" in cli.succeeds("stat", folder, "--split", "train").out


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_copy_is_a_whole_folder(cli: CommandLine, folder: Path, tmp_path: Path) -> None:
    expected = contents(folder)
    (folder / ".hidden").write_text("not of the folder")
    (folder / "manifest.json").write_text("true only for these shards")
    target = tmp_path / "copy" / "1.0.0"
    copied = cli.succeeds("cp", folder, f"{target}/", "--split", "all")
    assert "6 shards, 28 records" in copied.out
    assert "5 files that describe the data set copied, too" in copied.out
    assert contents(target) == expected
    assert "all as the manifest says" in cli.succeeds("verify", target, "--split", "all").out


def test_copy_of_a_folder_above_has_the_descriptions_below(
    cli: CommandLine, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, folder.parent / "1.1.0")
    cli.succeeds("cp", folder.parent, f"{tmp_path}/copy/", "--split", "all")
    for version in ("1.0.0", "1.1.0"):
        assert contents(tmp_path / "copy" / version) == contents(folder)


def test_second_split_is_added_to_a_copy(cli: CommandLine, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    cli.succeeds("cp", folder, f"{target}/", "--split", "test")
    opened = streamrec.tfds.open_sync(str(target))
    assert len(list(opened.records("test"))) == 5
    with pytest.raises(NotFoundError, match="2 more are missing"):
        opened.records("train")
    cli.fails(4, "already exists", "cp", folder, f"{target}/", "--split", "train")
    cli.succeeds("cp", "--resume", folder, f"{target}/", "--split", "train")
    assert contents(target) == contents(folder)


def test_resumed_copy_refuses_another_description(
    cli: CommandLine, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    cli.succeeds("cp", folder, f"{target}/", "--split", "test")
    info = target / "dataset_info.json"
    changed = info.read_bytes().replace(b"1.0.0", b"2.0.0")
    info.write_bytes(changed)
    before = contents(target)
    said = "dataset_info.json: it differs from"
    cli.fails(4, said, "cp", "--resume", folder, f"{target}/", "--split", "all")
    assert contents(target) == before
    cli.succeeds("cp", "--overwrite", folder, f"{target}/", "--split", "all")
    assert contents(target) == contents(folder)


def test_failed_copy_leaves_no_description(cli: CommandLine, folder: Path, tmp_path: Path) -> None:
    shard = folder / "kinds-train.tfrecord-00002-of-00003"
    shard.write_bytes(shard.read_bytes()[:-1])
    cli.fails(1, shard.name, "cp", folder, f"{tmp_path}/copy/", "--split", "all")
    assert not list((tmp_path / "copy").glob("*"))


def test_copy_onto_itself_is_refused(cli: CommandLine, folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    for target in (folder, link, folder / ".." / "1.0.0"):
        said = "is read, and would be overwritten"
        cli.fails(2, said, "cp", "--overwrite", folder, f"{target}/", "--split", "all")
    assert contents(folder) == before


def test_copy_leaves_out_files_that_are_excluded(
    cli: CommandLine, folder: Path, tmp_path: Path
) -> None:
    arguments = ["--split", "all", "--include", "*-test.*", "--exclude", "*.labels.txt"]
    cli.succeeds("cp", folder, f"{tmp_path}/copy/", *arguments)
    names = sorted(contents(tmp_path / "copy"))
    assert names[:2] == ["dataset_info.json", "features.json"]
    assert len(names) == 5
    assert all("-test." in name for name in names[2:])


def test_dry_run_of_a_copy_names_the_descriptions(
    cli: CommandLine, folder: Path, tmp_path: Path
) -> None:
    planned = cli.succeeds("cp", "--dry-run", folder, f"{tmp_path}/copy/", "--split", "all").out
    assert f"would write {tmp_path}/copy/features.json" in planned
    assert not (tmp_path / "copy").exists()


def test_copy_from_a_web_server_without_listing_is_whole(
    cli: CommandLine, folder: Path, http_store: Store, tmp_path: Path
) -> None:
    shutil.copytree(folder, http_store.directory / "tfds-copied", dirs_exist_ok=True)
    cli.succeeds("cp", f"{http_store.url}/tfds-copied/", f"{tmp_path}/copy/", "--split", "all")
    assert contents(tmp_path / "copy") == contents(folder)
