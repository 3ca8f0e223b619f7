"""Each cell of docs/faults.md: what a read does that meets the fault, on S3 and on GCS.

The rows and their faults are those of the page. A cell must end as the page says: with all records,
or with an error of that class after records that are as they were stored. Only the time limits are
shorter than on the page.
"""

import asyncio
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.faults import KEY, ROWS, STORES, Row, asked_at, faults_of
from benchmarks.table import load
from streamrec import RetryPolicy, TFRecordDataset, encode_records
from streamrec.storage import Storages
from tests.servers.objectstore import ObjectStore, anonymous_options

SHARD: Final = encode_records(random.Random(number).randbytes(1_000) for number in range(2_000))

POLICY: Final = RetryPolicy(
    patience=2.0,
    first_contact=1.5,
    backoff_cap=0.5,
    connect_timeout=1.0,
    first_byte_timeout=3.0,
    stall_timeout=3.0,
)

GIVEN_UP_IN_TIME: Final = (
    "503-always",
    "429-always",
    "reset-at-once",
    "refused",
    "away",
    "unknown",
)
"""The rows whose read tries again until its patience ends."""

MORE_REQUESTS: Final = 2
"""So many more requests than on the page may be second requests, on a machine with much to do."""

PAGE: Final = {
    (row["store"], row["fault"]): row
    for row in load("faults")["rows"]
    if row["client"] == "streamrec"
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    (folder / "bucket").mkdir()
    (folder / KEY).write_bytes(SHARD)
    return folder


async def read_bytes(url: str, start: int, taken: bytearray, options: Mapping[str, Any]) -> None:
    """Appends the bytes from `start` on."""
    async with Storages(options, retry=POLICY) as storages:
        stream = await (await storages.at(url)).stream(url, start)
        buffer = memoryview(bytearray(1 << 20))
        while count := await stream.readinto(buffer):
            taken += buffer[:count]
        await stream.aclose()


def read(url: str, start: int, taken: bytearray, options: Mapping[str, Any]) -> None:
    """Appends the shard's records as they were stored; or, from the middle, its bytes."""
    if start:
        asyncio.run(read_bytes(url, start, taken, options))
        return
    for record in TFRecordDataset(url, storage_options=options, retry=POLICY):
        taken += encode_records([record])


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("row", ROWS.values(), ids=[row.title for row in ROWS.values()])
def test_read_ends_as_the_page_of_faults_says(served: Path, store: str, row: Row) -> None:
    [name] = [name for name, each in ROWS.items() if each is row]
    cell = PAGE[store, name]
    taken = bytearray()
    error: Exception | None = None
    with (
        ObjectStore(served, faults_of(row, store)) as server,
        asked_at(row.place, server.url) as endpoint,
    ):
        scheme = "s3" if store == "s3" else "gs"
        key = f"{KEY}-missing" if row.place == "missing" else KEY
        options = anonymous_options(scheme, endpoint)
        began = time.monotonic()
        try:
            read(f"{scheme}://{key}", row.start, taken, options)
        except Exception as failure:
            error = failure
        seconds = time.monotonic() - began
        requests = server.counters.requests + server.counters.in_flight

    stored = SHARD[row.start :]
    assert stored.startswith(taken), "bytes are altered, or out of place"
    assert type(error).__name__ == (cell["error"] or "NoneType"), error
    assert len(taken) == len(stored) or error is not None
    if name in GIVEN_UP_IN_TIME:
        patience = POLICY.first_contact if row.place else POLICY.patience
        assert patience - POLICY.backoff_cap <= seconds
        assert row.place or requests > 2
    elif cell["requests"] is not None:
        assert cell["requests"] <= requests <= cell["requests"] + MORE_REQUESTS
    if row.faults.retry_after is not None:
        assert seconds >= row.faults.retry_after
