"""What the tests of all adapters share: a store that goes away while it is read, and where programs find a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from streamrec import Dataset, FixedLenFeature, RetryPolicy, TFRecordDataset, encode_example, encode_records
from tests.servers.faults import Faults
from tests.servers.program import ServerProcess
from tests.servers.real import Store

QUICK = RetryPolicy(attempts=2, backoff_base=0.01, connect_timeout=2.0, first_byte_timeout=2.0, stall_timeout=2.0)
RECORDS = 160
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Leaving:
    """A store that can be closed, and batches of one record from it, "id" alone, that wait for its bytes."""

    server: ServerProcess
    dataset: Dataset[dict[str, np.ndarray]]


@pytest.fixture
def leaving(tmp_path: Path) -> Iterator[Leaving]:
    """A store of its own, with two shards of 32 MB: more than the kernel's buffers hold when the store is closed."""
    (tmp_path / "bucket").mkdir()
    for shard in range(2):
        rows = [encode_example({"id": number, "filler": bytes(400_000)}) for number in range(RECORDS // 2)]
        (tmp_path / "bucket" / f"train-{shard}").write_bytes(encode_records(rows))
    with ServerProcess("tests.servers.objectstore", ("--root", str(tmp_path)), Faults(rate=8e6)) as server:
        options = {"endpoint_url": server.url, "anon": True}
        records = TFRecordDataset("s3://bucket/train-*", storage_options=options, retry=QUICK).distribute()
        batches = records.batch(1).parse_example({"id": FixedLenFeature((), np.int64)})
        yield Leaving(server, batches.with_options(memory_budget=2 << 20))


def client_environment(store: Store) -> dict[str, str]:
    """The environment in which a program finds a store of S3 without storage options, and this package."""
    return {
        "PYTHONPATH": str(ROOT),
        "AWS_ENDPOINT_URL": store.endpoint,
        "AWS_ACCESS_KEY_ID": store.options["key"],
        "AWS_SECRET_ACCESS_KEY": store.options["secret"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }
