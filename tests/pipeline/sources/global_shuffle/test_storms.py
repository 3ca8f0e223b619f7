"""A global shuffle over a bad network: the same bytes in the same order, or one clear error."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec
from streamrec import RetryPolicy, TFRecordDataset, encode_records, write_index_sync
from streamrec.errors import ObjectChangedError
from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.objectstore import ObjectStore

POLICY = RetryPolicy(attempts=30, backoff_base=0.01, backoff_cap=0.05, stall_timeout=0.5)
STORMS = {
    "breaks": Faults(seed=3, first_byte=0, jitter=0, reset=0.3, cut=0.2),
    "refusals": Faults(seed=4, first_byte=0, jitter=0, unavailable=0.15, truncate=0.2),
    "wrong ranges": Faults(seed=5, first_byte=0, jitter=0, wrong_content_range=0.3, ignore_range=0.3),
    "stalls": Faults(seed=6, first_byte=0, jitter=0, stall=0.1, slow=0.1, slow_first_byte=0.3),
}


@pytest.fixture(scope="module")
def shards() -> list[list[bytes]]:
    draw = np.random.default_rng(2)
    return [[draw.bytes(int(size)) for size in draw.integers(0, 60_000, 60)] for _ in range(3)]


@pytest.fixture
def store(tmp_path: Path, shards: list[list[bytes]]) -> Iterator[ObjectStore]:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    for number, records in enumerate(shards):
        (bucket / f"{number}.tfrecord").write_bytes(encode_records(records))
    with ObjectStore(tmp_path) as store:
        write_index_sync("s3://bucket/*.tfrecord", f"{tmp_path}/x.index", storage_options=options_of(store))
        (bucket / "x.index").write_bytes((tmp_path / "x.index").read_bytes())
        yield store


def options_of(store: ObjectStore) -> dict[str, Any]:
    return {"endpoint_url": store.url, "key": "k", "secret": "s"}


def shuffled(store: ObjectStore, quality: str, index: str = "s3://bucket/x.index") -> streamrec.Dataset[Any]:
    dataset: Any = TFRecordDataset("s3://bucket/*.tfrecord", storage_options=options_of(store), retry=POLICY)
    blocks: dict[str, Any] = {"quality": quality, "block_bytes": 200_000, "window_bytes": 1_600_000, "slot_groups": 4}
    dataset = dataset.global_shuffle(3, index=index, global_batch_size=20, **blocks)
    return dataset.with_options(epoch=0).with_options(
        memory_budget=4 << 20
    )  # little is fetched at a time: many requests


@pytest.mark.parametrize("quality", ["exact", "blocks"])
@pytest.mark.parametrize("storm", STORMS)
def test_storms_change_no_byte_and_no_place(store: ObjectStore, quality: str, storm: str) -> None:
    """Also where the job goes on from a state in the middle of the storm."""
    calm = [list(batch) for batch in shuffled(store, quality)]
    store.faults = STORMS[storm]
    run = shuffled(store, quality).iterate()
    found = [list(next(run)) for _ in range(4)]
    state = run.state_dict()
    run.close()
    found += [list(batch) for batch in shuffled(store, quality).iterate(state)]
    assert found == calm
    assert store.counters.by_fault


def test_a_shard_that_changes_under_way(store: ObjectStore, tmp_path: Path) -> None:
    """Elements before it come; then one error, which names the shard and what to run."""
    index = f"{tmp_path}/x.index"
    calm = [list(batch) for batch in shuffled(store, "blocks", index)]
    store.faults = replace(NO_FAULTS, script=("", "change"))
    found: list[list[bytes]] = []
    with pytest.raises(ObjectChangedError, match=r"s3://bucket/\d\.tfrecord.*streamrec index --update"):
        for batch in shuffled(store, "blocks", index):
            found.append(list(batch))
    assert found == calm[: len(found)]


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_a_truncated_index(store: ObjectStore, tmp_path: Path, cut: int) -> None:
    """One error before any record, which says how to write it again."""
    index = tmp_path / "bucket" / "x.index"
    index.write_bytes(index.read_bytes()[:cut])
    with pytest.raises(streamrec.errors.ManifestError, match=r"x\.index"):
        list(shuffled(store, "blocks"))
