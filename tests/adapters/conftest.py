"""What the tests of all adapters share: bad input and what is checked of it, and where programs find a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrec import (
    Dataset,
    FixedLenFeature,
    RetryPolicy,
    StreamrecError,
    TFRecordDataset,
    encode_example,
    encode_records,
)
from tests.servers.faults import Faults
from tests.servers.program import ServerProcess
from tests.servers.real import Store

QUICK = RetryPolicy(attempts=2, backoff_base=0.01, connect_timeout=2.0, first_byte_timeout=2.0, stall_timeout=2.0)
RECORDS = 160
FEATURES = {"id": FixedLenFeature((), np.int64)}
Load = Callable[[Dataset[Any]], Iterable[Any]]
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
        batches = records.batch(1).parse_example(FEATURES)
        yield Leaving(server, batches.with_options(memory_budget=2 << 20))


def failure(batches: Iterable[Any], between: Callable[[], object] = lambda: None) -> tuple[int, str]:
    """How many ids came, and the one error after them, with its notes."""
    seen = 0
    with pytest.raises((StreamrecError, OSError)) as caught:
        for batch in batches:
            seen += len(batch["id"])
            between()
    return seen, "\n".join([f"{caught.type.__name__}: {caught.value}", *getattr(caught.value, "__notes__", [])])


def check_damage(folder: Path, load: Load, alone: bool = True) -> None:
    """All records before the damage come, then an error that names it; of several readers, each numbers its own."""
    data = bytearray(encode_records([encode_example({"id": number}) for number in range(64)]))
    data[len(data) * 50 // 64] ^= 1
    (folder / "damaged").write_bytes(data)
    dataset = TFRecordDataset(str(folder / "damaged")).distribute().batch(4).parse_example(FEATURES)
    seen, said = failure(load(dataset))
    assert "CorruptRecordError: " in said
    assert f"{folder / 'damaged'}, " in said
    if alone:
        assert seen == 50
        assert f"{folder / 'damaged'}, record 50, byte" in said


def check_missing_feature(folder: Path, load: Load) -> None:
    """After a shuffle, too, the error names the record that lacks it."""
    rows = [encode_example({"id": number} if number != 10 else {"other": 1}) for number in range(21)]
    (folder / "shard").write_bytes(encode_records(rows))
    dataset = TFRecordDataset(str(folder / "shard")).distribute().shuffle(8).batch(4).parse_example(FEATURES)
    _, said = failure(load(dataset))
    assert "FeatureError: " in said
    assert "feature 'id': found nothing" in said
    assert f"{folder / 'shard'}, record 10" in said


def check_leaving(leaving: Leaving, load: Load) -> None:
    """A server that goes away is one error that names what was read."""
    seen, said = failure(load(leaving.dataset), leaving.server.close)
    assert 0 < seen < RECORDS
    assert "StorageError: " in said
    assert "s3://bucket/train-" in said


def client_environment(store: Store) -> dict[str, str]:
    """The environment in which a program finds a store of S3 without storage options, and this package."""
    return {
        "PYTHONPATH": str(ROOT),
        "AWS_ENDPOINT_URL": store.endpoint,
        "AWS_ACCESS_KEY_ID": store.options["key"],
        "AWS_SECRET_ACCESS_KEY": store.options["secret"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }
