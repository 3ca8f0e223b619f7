"""What the names of shards tell: which are missing, which are of another run, which split each is
of.
"""

import logging
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
from streamrec.display import warn_once
from streamrec.errors import NotFoundError, StreamrecError
from streamrec.shards.numbered_names import (
    MAX_TOTAL,
    Gap,
    distinct_parts,
    find_gaps,
    find_splits,
    parse_numbered,
)
from streamrec.shards.patterns import expand_sharded, is_sharded
from streamrec.tfrecord import encode_records
from tests.servers.real import Store


def numbered(stem: str, numbers: range | list[int], total: int, tail: str = "") -> list[str]:
    return [f"{stem}{number:05d}-of-{total:05d}{tail}" for number in numbers]


def write_all(paths: list[str]) -> None:
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with streamrec.TFRecordWriter(path) as writer:
            writer.write(path.encode())


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    warn_once.cache_clear()
    caplog.set_level(logging.WARNING, "streamrec")
    return caplog


@given(
    total=st.integers(1, 60),
    present=st.sets(st.integers(0, 59), min_size=1),
    stem=st.sampled_from(["x-", "s3://b/d/train.tfrecord-", "zip://d/x::"]),
    tail=st.sampled_from(["", ".tfrecord.gz"]),
)
def test_gaps_are_the_numbers_that_are_not_there(
    total: int, present: set[int], stem: str, tail: str
) -> None:
    if "::" in stem:
        stem, tail = "zip://d/x-", "::s3://b/c-1-of-9.zip"  # the archive's own name tells nothing
    present = {number % total for number in present}
    gaps = find_gaps(numbered(stem, sorted(present), total, tail))
    absent = sorted(set(range(total)) - present)
    assert [path for gap in gaps for path in gap.examples] == numbered(stem, absent, total, tail)
    assert sum(gap.missing for gap in gaps) == len(absent)


def test_shards_may_be_numbered_from_1() -> None:
    assert find_gaps(numbered("model-", range(1, 5), 4)) == []
    [gap] = find_gaps(numbered("model-", [1, 2, 4], 4))
    assert gap.examples == ("model-00003-of-00004",)


def test_each_set_has_gaps_of_its_own_and_other_names_have_none() -> None:
    paths = [*numbered("d/a-", [0], 2), *numbered("d/b-", [0, 1], 2), "d/x-7", "d/9-of-8", "d/c@3"]
    assert [gap.pattern for gap in find_gaps(paths)] == ["d/a-*-of-00002"]


def test_two_totals_are_two_runs() -> None:
    mixed, incomplete = find_gaps([*numbered("d/x-", range(4), 4), *numbered("d/x-", [0], 2)])
    assert dict(mixed.totals) == {2: 1, 4: 4}
    assert "1 of 2 shards and 4 of 4 shards" in str(mixed)
    assert incomplete.examples == ("d/x-00001-of-00002",)


def test_a_pattern_of_a_part_misses_only_what_it_would_match() -> None:
    paths = numbered("x-", [0, 2], 100)
    [gap] = find_gaps(paths, "x-0000?-of-*")
    assert (gap.missing, len(gap.examples)) == (8, 8)


def test_a_name_that_tells_of_very_many_shards_costs_little() -> None:
    assert parse_numbered(f"x-0-of-{MAX_TOTAL + 1}") is None
    paths = [f"{number}-0-of-{MAX_TOTAL}" for number in range(200)]
    began = time.process_time()
    gaps = find_gaps(paths, "other-*")
    assert gaps == []
    assert len(find_gaps(paths)) == 200
    assert time.process_time() - began < 20  # without the limit it takes minutes


def test_a_long_list_of_missing_shards_is_cut_in_the_message() -> None:
    [gap] = find_gaps(["x-0-of-2000"])
    assert str(gap).endswith(": x-1-of-2000, x-2-of-2000, x-3-of-2000, ...")
    assert gap.missing == 1999
    assert isinstance(gap, Gap)


@pytest.mark.parametrize(
    ("paths", "splits"),
    [
        (["d/ints-train.tfrecord-0-of-1", "d/ints-test.tfrecord-0-of-1"], ["train", "test"]),
        (["d/train-0-of-1", "d/validation-0-of-1"], ["train", "validation"]),
        (["d/x-train-0-of-2.tfrecord.gz", "d/x-train-1-of-2.tfrecord.gz"], ["train"]),
        (["d/a-b-train-0-of-1", "d/a-b-train_extra-0-of-1"], ["train", "train_extra"]),
        (["d/1.0.0/x-train-0-of-1", "d/2.0.0/x-train-0-of-1"], ["1.0.0/train", "2.0.0/train"]),
        (["d/train_001.tfrecord", "d/train_002.tfrecord", "d/val_001.tfrecord"], ["train", "val"]),
        (["d/train/001", "d/test/001", "d/test/002"], ["train", "test"]),
        (["d/segment-1.tfrecord", "d/segment-2.tfrecord"], []),
        (["d/train/a", "d/train/b"], []),
    ],
)
def test_names_tell_splits(paths: list[str], splits: list[str]) -> None:
    found = find_splits(paths)
    assert found.names == splits
    assert sorted(path for its in found.shards.values() for path in its) == sorted(paths)


def test_a_split_is_found_by_its_name_or_its_end() -> None:
    train, test = ["d/x-train-clean-0-of-1"], ["d/x-test-clean-0-of-1"]
    splits = find_splits(train + test)
    assert splits.select("train-clean") == train
    assert splits.select("clean") is None, "two of them end so"
    assert splits.select("all") == train + test
    assert splits.select("dev") is None


@given(st.lists(st.text("ab-", min_size=1, max_size=6), min_size=2, max_size=5, unique=True))
def test_distinct_parts_are_ends_and_stay_distinct(stems: list[str]) -> None:
    parts = distinct_parts(stems)
    assert len(set(parts.values())) == len(stems)
    assert all(stem.endswith(part) for stem, part in parts.items())


@given(st.integers(1, 2000), st.sampled_from(["", ".gz", ".tfrecord.gz"]))
def test_google_s_notation_names_a_whole_set(total: int, ending: str) -> None:
    name = f"gs://b/x.tfrecord@{total}{ending}"
    assert is_sharded(name)
    paths = list(expand_sharded(name))
    assert len(paths) == total
    assert find_gaps(paths) == []
    assert paths[0] == f"gs://b/x.tfrecord-00000-of-{total:05d}{ending}"


@pytest.mark.parametrize(
    "name", ["s3://bucket@8", "x@", "x@y", "@8", "d/@8", "x@8/y", "x*@8", "m@8.json", "t@8.index"]
)
def test_other_names_with_an_at_sign_are_just_names(name: str) -> None:
    assert not is_sharded(name)


def test_a_sharded_name_is_read_as_its_shards_unless_an_object_has_it(tmp_path: Path) -> None:
    paths = numbered(f"{tmp_path}/x.tfrecord-", range(3), 3)
    write_all(paths)
    name = f"{tmp_path}/x.tfrecord@3"
    assert list(streamrec.TFRecordDataset(name)) == [path.encode() for path in paths]
    assert streamrec.matching_files(name) == paths
    assert streamrec.shards.verify_sync(name).shards == 3
    write_all([name])
    assert list(streamrec.TFRecordDataset(name)) == [name.encode()]


def test_a_sharded_name_with_a_missing_shard_names_it(tmp_path: Path) -> None:
    write_all(numbered(f"{tmp_path}/x-", [0], 2))
    with pytest.raises(NotFoundError, match="x-00001-of-00002"):
        list(streamrec.TFRecordDataset(f"{tmp_path}/x@2"))


def test_a_pattern_warns_once_of_a_shard_that_is_missing(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    write_all(numbered(f"{tmp_path}/x-train.tfrecord-", [0, 2], 3))
    for _ in range(2):
        assert len(list(streamrec.TFRecordDataset(f"{tmp_path}/x-*"))) == 2
    assert len(warnings.messages) == 1
    assert "1 of 3 shards is missing" in warnings.messages[0]
    assert "x-train.tfrecord-00001-of-00003" in warnings.messages[0]


def test_a_pattern_of_a_part_and_single_names_do_not_warn(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    paths = numbered(f"{tmp_path}/x-", range(4), 4)
    write_all(paths)
    for names in (f"{tmp_path}/x-0000[01]*", paths[:2], f"{tmp_path}/x-{{00000..00002}}-of-00004"):
        assert list(streamrec.TFRecordDataset(names))
    assert warnings.messages == []


def test_a_manifest_whose_shards_are_not_all_warns_too(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    paths = numbered(f"{tmp_path}/x-", [0, 1], 3)
    write_all(paths)
    manifest = f"{tmp_path}/manifest.json"
    streamrec.write_manifest_sync(paths, manifest)
    assert len(list(streamrec.TFRecordDataset(manifest))) == 2
    assert "x-00002-of-00003" in warnings.text
    problems = streamrec.shards.verify_sync(manifest).problems
    assert [(problem.path, problem.kind) for problem in problems] == [
        (f"{tmp_path}/x-00002-of-00003", "missing")
    ]
    streamrec.write_manifest_sync(paths[:1], manifest)
    assert streamrec.shards.verify_sync(manifest), "a writer of one shard has a manifest of its own"


def test_verify_reports_what_names_tell(tmp_path: Path) -> None:
    write_all([*numbered(f"{tmp_path}/x-", [0, 2], 3), *numbered(f"{tmp_path}/x-", [0, 1], 2)])
    report = streamrec.shards.verify_sync(f"{tmp_path}/x-*")
    assert not report
    assert [(Path(problem.path).name, problem.kind) for problem in report.problems] == [
        ("x-*", "mixed"),
        ("x-00001-of-00003", "missing"),
    ]
    assert "x-00001-of-00003: missing: nothing, and the names of 2 others tell of 3" in str(report)


def test_a_pattern_warns_of_training_and_test_data_that_it_mixes(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    write_all([f"{tmp_path}/x-train.tfrecord-0-of-1", f"{tmp_path}/x-test.tfrecord-0-of-1"])
    assert len(list(streamrec.TFRecordDataset(f"{tmp_path}/*.tfrecord*"))) == 2
    assert "several splits, test (1 shard) and train (1 shard)" in warnings.text


@pytest.mark.parametrize("reads", ["dataset", "distribute", "verify", "manifest", "index"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_the_error_of_a_folder_names_its_splits(reads: str, slash: str, tmp_path: Path) -> None:
    write_all(
        [
            *numbered(f"{tmp_path}/x-train.tfrecord-", [0, 1], 2),
            f"{tmp_path}/x-test.tfrecord-00000-of-00001",
        ]
    )
    name = f"{tmp_path}{slash}"

    def read() -> None:
        if reads == "dataset":
            list(streamrec.TFRecordDataset(name))
        elif reads == "distribute":
            list(streamrec.TFRecordDataset(name).distribute(0, 2))
        elif reads == "verify":
            streamrec.shards.verify_sync(name)
        elif reads == "manifest":
            streamrec.write_manifest_sync(name, f"{tmp_path}/m.json")
        else:
            streamrec.write_index_sync(name, f"{tmp_path}/x.index")

    with pytest.raises(StreamrecError, match=r"splits test \(1 shard\) and train \(2 shards\)"):
        read()


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_prefix_of_an_object_store_is_a_folder_too(
    slash: str, s3_store: Store, warnings: pytest.LogCaptureFixture
) -> None:
    folder = f"{s3_store.url}/splits"
    record = encode_records([b"x"])
    paths = [*numbered(f"{folder}/x-train-", [0, 2], 3), f"{folder}/x-test-00000-of-00001"]
    s3_store.put(dict.fromkeys(paths, record))
    options = s3_store.options
    expected = r"splits test \(1 shard\) and train \(2 shards\)"
    for reads in (lambda data: data, lambda data: data.distribute(0, 2)):
        with pytest.raises(StreamrecError, match=expected):
            list(reads(streamrec.TFRecordDataset(folder + slash, storage_options=options)))
    assert warnings.messages == []
    list(streamrec.TFRecordDataset(f"{folder}/x-train-*", storage_options=options))
    assert "x-train-00001-of-00003" in warnings.text
    test = streamrec.TFRecordDataset(f"{folder}/x-test@1", storage_options=options)
    assert list(test) == [b"x"]


def test_the_error_of_a_folder_of_versions_names_them(tmp_path: Path) -> None:
    for version in ("1.0.0", "2.0.0"):
        write_all([f"{tmp_path}/{version}/x-train.tfrecord-00000-of-00001"])
    with pytest.raises(StreamrecError, match=r"1\.0\.0/train .* and 2\.0\.0/train"):
        list(streamrec.TFRecordDataset(str(tmp_path)))


def test_the_error_of_a_folder_of_one_split_gives_its_pattern(tmp_path: Path) -> None:
    write_all([f"{tmp_path}/x-train.tfrecord-00000-of-00001", f"{tmp_path}/notes"])
    with pytest.raises(StreamrecError, match=r"write .*/x-train\.tfrecord-\*-of-00001 for"):
        list(streamrec.TFRecordDataset(str(tmp_path)))
