"""A run over damaged shards goes on, and can be resumed anywhere in it."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec
from streamrec import TFRecordDataset
from streamrec.tfrecord import Loss
from tests.pipeline.test_dataset import collect, plain
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
        edits = [Edit("change", size // 5, 300), Edit("delete", size // 2, 150), Edit("change", size - 5, 2)]
        case = damaged(records, edits if shard != 1 else [], rng)
        path = tmp_path / f"d-{shard}.tfrecord"
        path.write_bytes(case.data)
        found[str(path)] = case.survivors
    return found


def test_training_goes_on(survivors: dict[str, list[bytes]]) -> None:
    """All that is good comes, in order; what was lost is told."""
    told: list[Loss] = []
    dataset = TFRecordDataset(list(survivors), on_error="resync", on_loss=told.append)
    expected = [record for records in survivors.values() for record in records]
    assert plain(list(dataset.batch(16))) == [expected[i : i + 16] for i in range(0, len(expected), 16)]
    assert {loss.path for loss in told} == {path for path in survivors if not path.endswith("d-1.tfrecord")}
    with pytest.raises(streamrec.CorruptRecordError):
        list(TFRecordDataset(list(survivors)))


async def test_async_too(survivors: dict[str, list[bytes]]) -> None:
    dataset = TFRecordDataset(list(survivors), num_parallel_reads=3, on_error="resync")
    assert sorted(await collect(dataset)) == sorted(record for records in survivors.values() for record in records)


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
    survivors: dict[str, list[bytes]], on_error: str, cycle: int, buffer_size: int, deterministic: bool
) -> None:
    """Behind each record, also the last one before damage and the first one after it."""
    dataset: Any = TFRecordDataset(
        list(survivors), "", buffer_size, cycle, deterministic=deterministic, on_error=on_error
    )
    iterator = dataset.iterate()
    states, elements = [iterator.state_dict()], []
    for element in iterator:
        elements.append(element)
        states.append(iterator.state_dict())
    step = 3 if deterministic else 10
    for index in range(0, len(states), step):
        resumed = list(dataset.iterate(json.loads(json.dumps(states[index]))))
        expected = elements[index:]
        assert (resumed if deterministic else sorted(resumed)) == (expected if deterministic else sorted(expected))


def test_a_dataset_that_forgives_is_a_value(survivors: dict[str, list[bytes]]) -> None:
    dataset = TFRecordDataset(list(survivors), on_error="resync", max_skipped=50)
    assert pickle.loads(pickle.dumps(dataset)) == dataset
    assert dataset != TFRecordDataset(list(survivors))
    with pytest.raises(streamrec.CorruptRecordError, match="max_skipped=1"):
        list(TFRecordDataset(list(survivors), on_error="resync", max_skipped=1))
    with pytest.raises(ValueError, match="on_error='nothing'"):
        TFRecordDataset(list(survivors), on_error="nothing")
