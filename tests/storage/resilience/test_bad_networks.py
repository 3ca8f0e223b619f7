"""Reading over a bad network: all records, in order, byte-identical, and statistics that show the faults."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import streamrec
from streamrec import RetryPolicy, TFRecordDataset, encode_records
from streamrec.storage import Counts
from tests.servers.faults import FAULTS_OF, NO_FAULTS, Faults
from tests.servers.objectstore import ObjectStore, serve_objects
from tests.servers.real import Store

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
    dataset = TFRecordDataset(urls, storage_options=store.options(scheme), retry=POLICY, num_parallel_reads=1)
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
    assert sum(counts.retries.values()) + counts.hedges >= met.total() - met["stall"] - met["ignore_range"]
    # a hedge that loses at once is cancelled, perhaps before the store reads it
    assert counts.requests - counts.hedges <= store.counters.requests <= counts.requests


def test_a_month_long_run_forgets_what_went_wrong(store: ObjectStore) -> None:
    """More faults than allowed attempts, but never that many without progress."""
    store.faults = replace(NO_FAULTS, script=("reset",) * 20, at=0.05)
    dataset = TFRecordDataset(
        "s3://bucket/shard-0",
        storage_options=store.options(),
        retry=RetryPolicy(attempts=2, backoff_base=0.001),
    )
    with dataset.batch(100).iterate() as batches:
        assert [record for frames in batches for record in frames] == SHARDS[0]
        counts = batches.stats().storage.backends["s3"]
    assert counts.retries["broken"] == 20


PAGE = Path(__file__).parents[3] / "docs" / "bad-networks.md"


def test_the_page_names_every_setting_and_every_count() -> None:
    text = PAGE.read_text()
    for cls in (RetryPolicy, Counts):
        for field in fields(cls):
            assert f"`{field.name}`" in text


RECORDS = [b"%d:" % index * 50 for index in range(20_000)]
DATA = encode_records(RECORDS)
BAD = 15_000
OFFSET = len(encode_records(RECORDS[:BAD]))

QUICK = RetryPolicy(patience=2)

Reading = Callable[[str, dict[str, Any]], tuple[list[bytes], Exception]]


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def put(store: Store, name: str, data: bytes) -> str:
    url = f"{store.url}/{name}"
    store.put({url: data})
    return url


def read_sync(url: str, options: dict[str, Any]) -> tuple[list[bytes], Exception]:
    found: list[bytes] = []
    with pytest.raises(streamrec.StreamrecError) as caught:
        for frames in TFRecordDataset(url, storage_options=options, retry=QUICK).batch(512):
            found += frames
    return found, caught.value


def read_async(url: str, options: dict[str, Any]) -> tuple[list[bytes], Exception]:
    found: list[bytes] = []

    async def read() -> None:
        async with streamrec.open_shard(url, storage_options=options, retry=QUICK) as shard:
            async for record in shard:
                found.append(record)

    with pytest.raises(streamrec.StreamrecError) as caught:
        asyncio.run(read())
    return found, caught.value


both = pytest.mark.parametrize("read", [read_sync, read_async])


@both
@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("byte", flipped(DATA, OFFSET + 20), streamrec.CorruptRecordError),
        ("length", flipped(DATA, OFFSET + 1), streamrec.CorruptRecordError),
        ("cut", DATA[: OFFSET + 30], streamrec.errors.TruncatedShardError),
    ],
)
def test_damage(s3_store: Store, read: Reading, name: str, data: bytes, kind: type[Exception]) -> None:
    url = put(s3_store, f"network-{name}", data)
    found, error = read(url, dict(s3_store.options))
    assert type(error) is kind
    assert found == RECORDS[:BAD]
    assert (error.path, error.offset, error.record) == (url, OFFSET, BAD)  # type: ignore[attr-defined]
    assert url in str(error)


def test_what_is_not_damaged_is_read_on(s3_store: Store) -> None:
    """A damaged payload and a damaged length: read whole, and in pieces side by side, each good record comes once."""
    data = flipped(flipped(DATA, OFFSET + 1), len(encode_records(RECORDS[:300])) + 15)
    url, options = put(s3_store, "network-damage", data), dict(s3_store.options)
    rest = RECORDS[:300] + RECORDS[301:BAD] + RECORDS[BAD + 1 :]
    told: list[streamrec.tfrecord.Loss] = []
    dataset = streamrec.TFRecordDataset(url, storage_options=options, on_error="resync", on_loss=told.append)
    assert [record for frames in dataset.batch(512) for record in frames] == rest
    assert [(loss.path, loss.record) for loss in told] == [(url, 300), (url, BAD - 1)]

    async def piece(start: int, end: int) -> list[bytes]:
        reading = streamrec.open_shard(url, start=start, end=end, on_error="resync", storage_options=options)
        async with reading as shard:
            return [record async for record in shard]

    async def pieces() -> list[list[bytes]]:
        size = len(data) // 5 + 1
        return await asyncio.gather(*[piece(start, start + size) for start in range(0, len(data), size)])

    found = asyncio.run(pieces())
    assert min(map(len, found)) > 1_000
    assert [record for part in found for record in part] == rest
