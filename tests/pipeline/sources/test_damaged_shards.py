"""A run over damaged shards goes on, and can be resumed anywhere in it; damaged payloads are read
again.
"""

import pickle
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

import streamrec
from streamrec import CorruptRecordError, TFRecordDataset, encode_records
from streamrec.errors import ObjectChangedError, PositionMismatchError
from streamrec.pipeline.engine.states import digest_state
from streamrec.pipeline.sources.shuffle.held import HeldElements
from streamrec.shards import byte_runs
from streamrec.tfrecord import Loss
from tests.runs import write_shards
from tests.servers.real import Store
from tests.servers.resuming import assert_resumes_everywhere, stop_after
from tests.tfrecord.damage import Edit, damaged, records_of, starts_of

SHARDS = 4
COUNT = 60


@pytest.fixture
def survivors(tmp_path: Path) -> dict[str, list[bytes]]:
    """Four shards, the second undamaged, and the records of each that the damage did not touch."""
    found = {}
    for shard in range(SHARDS):
        rng = np.random.default_rng(shard)
        records = records_of(rng, COUNT)
        size = starts_of(records)[-1]
        edits = [
            Edit("change", size // 5, 300),
            Edit("delete", size // 2, 150),
            Edit("change", size - 5, 2),
        ]
        case = damaged(records, edits if shard != 1 else [], rng)
        path = tmp_path / f"d-{shard}.tfrecord"
        path.write_bytes(case.data)
        found[str(path)] = case.survivors
    return found


def test_training_continues(survivors: dict[str, list[bytes]]) -> None:
    """All that is good comes, in order; what was lost is told."""
    losses: list[Loss] = []
    dataset = TFRecordDataset(list(survivors), on_error="resync", on_loss=losses.append)
    expected = [record for records in survivors.values() for record in records]
    assert list(map(list, dataset.batch(16))) == [
        expected[i : i + 16] for i in range(0, len(expected), 16)
    ]
    assert {loss.path for loss in losses} == {
        path for path in survivors if not path.endswith("d-1.tfrecord")
    }
    with pytest.raises(streamrec.CorruptRecordError):
        list(TFRecordDataset(list(survivors)))


def test_skip_shard_leaves_the_others_whole(survivors: dict[str, list[bytes]]) -> None:
    found = list(TFRecordDataset(list(survivors), on_error="skip_shard"))
    whole = survivors[next(path for path in survivors if path.endswith("d-1.tfrecord"))]
    assert [record for record in found if record in whole] == whole
    assert len(whole) == COUNT < len(found)


@pytest.mark.parametrize("on_error", ["resync", "skip_shard"])
@pytest.mark.parametrize("cycle", [1, 3])
@pytest.mark.parametrize("buffer_size", [100, 1 << 20])
@pytest.mark.parametrize("deterministic", [True, False])
def test_resumes_exactly_everywhere(
    survivors: dict[str, list[bytes]],
    on_error: str,
    cycle: int,
    buffer_size: int,
    deterministic: bool,
) -> None:
    """Behind each record, also the last one before damage and the first one after it."""
    dataset: Any = TFRecordDataset(
        list(survivors), "", buffer_size, cycle, deterministic=deterministic, on_error=on_error
    )
    if deterministic:
        assert_resumes_everywhere(dataset)
    else:
        everything = sorted(dataset)
        for count in range(0, len(everything) + 1, 10):
            before, state = stop_after(dataset, count)
            assert sorted([*before, *dataset.iterate(state)]) == everything


def test_a_dataset_that_forgives_is_a_value(survivors: dict[str, list[bytes]]) -> None:
    dataset = TFRecordDataset(list(survivors), on_error="resync", max_skipped=50)
    assert dataset != TFRecordDataset(list(survivors))
    with pytest.raises(streamrec.CorruptRecordError, match="max_skipped=1"):
        list(TFRecordDataset(list(survivors), on_error="resync", max_skipped=1))


IMAGES = [
    [b"%d.%d." % (shard, index) + b"x" * 100_000 for index in range(60)] for shard in range(4)
]
SMALL = [
    [b"%d.%d." % (shard, index) + b"x" * (index % 90) for index in range(9000)]
    for shard in range(4)
]


def stored(store: Store, shards: list[list[bytes]]) -> list[str]:
    """Shards in a bucket."""
    urls = [f"{store.url}/{uuid4().hex}/{shard}" for shard in range(len(shards))]
    store.put(dict(zip(urls, map(encode_records, shards), strict=True)))
    return urls


@pytest.mark.parametrize("shards", [IMAGES, SMALL], ids=["images", "small"])
def test_bytes_held_after_damage_are_not_read_again(
    s3_store: Store, shards: list[list[bytes]]
) -> None:
    """At the end of the input no other byte is read: as many as the plan says, in as many
    requests.
    """
    urls = stored(s3_store, shards)
    total, held = sum(map(len, shards)), 30
    dataset = TFRecordDataset(
        urls, num_parallel_reads=4, storage_options=dict(s3_store.options)
    ).shuffle(held, seed=1)
    expected = list(dataset)
    state = stop_after(dataset.with_options(epoch=0), total - held)[1]
    references = HeldElements.from_json(state["position"]["source"]["held"])
    order = np.argsort(references.numbers)
    assert references.sizes is not None
    plan = byte_runs(references.numbers[order], references.sizes[order])
    again = dataset.iterate(state)
    found, counts = list(again), again.stats().storage.backends["s3"]
    assert found == expected[-held:]
    wanted = sum(len(record) + 16 for record in found)
    assert counts.bytes == sum(stretch.end - stretch.start for stretch in plan)
    assert wanted <= counts.bytes <= wanted + held * (256 << 10)
    assert counts.requests == len(plan) + len(shards)  # each shard is opened at its end, too


def test_a_shard_that_was_replaced_is_refused(s3_store: Store) -> None:
    """Though what is there now has the same size."""
    urls = stored(s3_store, IMAGES)
    dataset = TFRecordDataset(
        urls, num_parallel_reads=4, storage_options=dict(s3_store.options)
    ).shuffle(40, seed=1)
    state = stop_after(dataset, 100)[1]
    s3_store.put({urls[2]: encode_records([record.replace(b"x", b"y") for record in IMAGES[2]])})
    with pytest.raises(ObjectChangedError, match=urls[2]):
        list(dataset.iterate(state))


def without_versions(state: dict[str, Any]) -> dict[str, Any]:
    """The state as it is for a store that tells no versions."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(part) for key, part in value.items()}
        if isinstance(value, list):
            return [without(part) for part in value]
        return None if isinstance(value, str) and value in versions else value

    source = state["position"]["source"]
    versions = {version for version, _ in source["held"]["shards"].values()}
    changed: dict[str, Any] = {**state, "position": without(state["position"])}
    changed["digest"] = digest_state(
        {key: value for key, value in changed.items() if key != "digest"}
    )
    return changed


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ([b"y" * 50] * 60, CorruptRecordError, "was changed in the shard"),
        (
            [b"y"],
            PositionMismatchError,
            r"ends before byte [0-9,]+, where this state's shuffle buffer held a record",
        ),
    ],
)
def test_other_bytes_are_refused_where_versions_are_not_known(
    tmp_path: Path, changed: list[bytes], error: type[Exception], words: str
) -> None:
    shards = [[b"%d.%d." % (shard, index) * 9 for index in range(60)] for shard in range(3)]
    write_shards(tmp_path, shards)
    dataset = TFRecordDataset(f"{tmp_path}/*", num_parallel_reads=3).shuffle(40, seed=1)
    state = without_versions(stop_after(dataset, 90)[1])
    assert len(list(dataset.iterate(state))) == 90
    (tmp_path / "s-1").write_bytes(encode_records(changed))
    with pytest.raises(error, match=words):
        list(dataset.iterate(state))


def test_a_shard_that_is_gone_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, [[b"%d" % index for index in range(60)] for _ in range(3)])
    dataset = TFRecordDataset(f"{tmp_path}/*", num_parallel_reads=3).shuffle(40, seed=1)
    state = stop_after(dataset, 90)[1]
    (tmp_path / "s-2").unlink()
    dataset = pickle.loads(
        pickle.dumps(dataset)
    )  # one that does not know yet which files there are
    with pytest.raises(PositionMismatchError, match="refers to shard 2, but there are only 2"):
        list(dataset.iterate(state))


def test_functions_are_called_again_only_for_what_was_held(tmp_path: Path) -> None:
    write_shards(
        tmp_path, [[b"%d.%d" % (shard, index) for index in range(100)] for shard in range(3)]
    )
    calls: list[bytes] = []

    def noted(record: bytes) -> bytes:
        calls.append(record)
        return record + b"!"

    dataset = TFRecordDataset(f"{tmp_path}/*", num_parallel_reads=3).map(noted).shuffle(40, seed=1)
    expected = list(dataset)
    state = stop_after(dataset.with_options(epoch=0), 200)[1]
    calls.clear()
    assert list(dataset.iterate(state)) == expected[200:]
    assert len(calls) == 100
