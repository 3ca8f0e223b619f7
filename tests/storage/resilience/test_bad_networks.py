"""Reading over a bad network: all records, in order, byte-identical, and statistics that show the
faults.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from streamrec import RetryPolicy, TFRecordDataset, encode_records
from streamrec.storage import Counts
from tests.servers.faults import FAULTS_OF, Faults
from tests.servers.objectstore import ObjectStore, serve_objects

SHARDS = [[os.urandom(2000) + bytes([shard]) for _ in range(800)] for shard in range(8)]
POLICY = RetryPolicy(attempts=12, backoff_base=0.01, backoff_cap=0.1, stall_timeout=1.0)

FAULTS = {
    "broken": Faults(reset=0.3, cut=0.3),
    "busy": Faults(unavailable=0.2, retry_after=0),
    "stalls": Faults(stall=0.3),
    "slow": Faults(slow=0.3, slow_first_byte=2.0, unavailable=0.2),
    "lies": Faults(truncate=0.2, wrong_content_range=0.2, ignore_range=0.2, reset=0.2),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    shards = {f"shard-{index}": encode_records(records) for index, records in enumerate(SHARDS)}
    with serve_objects(tmp_path, shards) as store:
        yield store


@pytest.mark.parametrize("scheme", ["s3", "gs", "http"])
@pytest.mark.parametrize("network", FAULTS)
def test_every_record_comes(store: ObjectStore, scheme: str, network: str) -> None:
    store.faults = replace(FAULTS[network], seed=11, first_byte=0.002, jitter=0.002)
    urls = [store.url_of(scheme, f"bucket/shard-{index}") for index in range(8)]
    dataset = TFRecordDataset(
        urls, storage_options=store.options(scheme), retry=POLICY, num_parallel_reads=1
    )
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
    assert met.keys() >= {name for name in FAULTS_OF["read"] if getattr(FAULTS[network], name)}
    assert any(entry.slow for entry in store.log) or not FAULTS[network].slow
    # if a request or its hedge meets a fault, the other one continues
    assert (
        sum(counts.retries.values()) + counts.hedges
        >= met.total() - met["stall"] - met["ignore_range"]
    )
    # a hedge that loses at once is cancelled, perhaps before the store reads it
    assert counts.requests - counts.hedges <= store.counters.requests <= counts.requests


PAGE = Path(__file__).parents[3] / "docs" / "bad-networks.md"


def test_the_page_names_every_setting_and_every_count() -> None:
    text = PAGE.read_text()
    for cls in (RetryPolicy, Counts):
        for field in fields(cls):
            assert f"`{field.name}`" in text
