"""What a user sees over a bad network: all records, in order, byte-identical, and statistics that say what it took."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from streamrec import RetryPolicy, TFRecordDataset, encode_records
from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.objectstore import ObjectStore

SHARDS = [[os.urandom(2000) + bytes([shard]) for _ in range(800)] for shard in range(8)]
POLICY = RetryPolicy(attempts=12, backoff_base=0.01, backoff_cap=0.1, stall_timeout=1.0)

FAULTS = {
    "reset": Faults(reset=0.4),
    "cut": Faults(cut=0.4),
    "unavailable": Faults(unavailable=0.2),
    "retry-after": Faults(unavailable=0.2, retry_after=0),
    "stall": Faults(stall=0.3),
    "slow": Faults(slow=0.3, slow_first_byte=2.0),
    "truncate": Faults(truncate=0.3),
    "wrong range": Faults(wrong_content_range=0.3, reset=0.3),
    "no range": Faults(ignore_range=0.3, reset=0.3),
    "all": Faults(reset=0.2, unavailable=0.1, stall=0.05, slow=0.05, slow_first_byte=2.0),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    (tmp_path / "bucket").mkdir()
    for index, records in enumerate(SHARDS):
        (tmp_path / "bucket" / f"shard-{index}").write_bytes(encode_records(records))
    with ObjectStore(tmp_path) as store:
        yield store


@pytest.mark.parametrize("scheme", ["s3", "gs", "http"])
@pytest.mark.parametrize("network", FAULTS)
def test_every_record_comes(store: ObjectStore, scheme: str, network: str) -> None:
    store.faults = replace(FAULTS[network], seed=11, first_byte=0.002, jitter=0.002)
    own: dict[str, dict[str, object]] = {
        "s3": {"endpoint_url": store.url, "anon": True},
        "gs": {"endpoint_url": store.url, "token": "anon", "project": "p"},
        "http": {},
    }
    root = f"{store.url}/bucket" if scheme == "http" else f"{scheme}://bucket"
    urls = [f"{root}/shard-{index}" for index in range(8)]
    dataset = TFRecordDataset(urls, storage_options=own[scheme], retry=POLICY, num_parallel_reads=1)
    found: list[bytes] = []
    with dataset.batch(64).iterate() as batches:
        for frames in batches:
            found += frames
        counts = batches.stats().storage.backends[scheme]
    assert found == [record for records in SHARDS for record in records]
    assert counts.bytes == sum(len(encode_records(records)) for records in SHARDS)
    assert counts.failures == 0
    assert store.wait_idle(30)
    met = Counter(entry.fault for entry in store.log if entry.fault)
    slow = sum(entry.slow for entry in store.log)
    assert met or slow
    # of a request and its second one, either may meet a fault, and the other goes on
    assert sum(counts.retries.values()) + counts.hedges >= met.total() - met["stall"] - met["ignore_range"]
    # a second request that loses at once is cancelled, perhaps before the store reads it
    assert counts.requests - counts.hedges <= store.counters.requests <= counts.requests


def test_a_month_long_run_forgets_what_went_wrong(store: ObjectStore) -> None:
    """More faults than attempts are allowed, but never so many without progress."""
    store.faults = replace(NO_FAULTS, script=("reset",) * 20, at=0.05)
    dataset = TFRecordDataset(
        "s3://bucket/shard-0",
        storage_options={"endpoint_url": store.url, "anon": True},
        retry=RetryPolicy(attempts=2, backoff_base=0.001),
    )
    with dataset.batch(100).iterate() as batches:
        assert [record for frames in batches for record in frames] == SHARDS[0]
        counts = batches.stats().storage.backends["s3"]
    assert counts.retries["broken"] == 20
