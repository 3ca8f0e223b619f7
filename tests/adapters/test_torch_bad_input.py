"""Bad input through each way to load in PyTorch: one clear error with path and record, and no hang."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrec import (
    CorruptRecordError,
    Dataset,
    FeatureError,
    FixedLenFeature,
    StorageError,
    TFRecordDataset,
    encode_example,
    encode_records,
)
from tests.adapters.conftest import RECORDS, Leaving

torch = pytest.importorskip("torch")
stateful = pytest.importorskip("torchdata.stateful_dataloader")

from torch.utils.data import DataLoader  # noqa: E402

from streamrec.torch import IterableDataset, Loader  # noqa: E402

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # by torchdata, of torch
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than there are cores
    pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork"),  # Python 3.12 says so of any DataLoader
]

FEATURES = {"id": FixedLenFeature((), np.int64)}
WAYS = ["loader", "process", "workers", "stateful"]


def loaded(way: str, dataset: Dataset[Any]) -> Any:
    """An iterable of batches, as one of four loaders gives them."""
    if way == "loader":
        return Loader(dataset)
    workers = 0 if way == "process" else 2
    kind: Any = stateful.StatefulDataLoader if way == "stateful" else DataLoader
    return kind(IterableDataset(dataset), batch_size=None, num_workers=workers)


def rows(count: int, **others: bytes) -> list[bytes]:
    return [encode_example({"id": number, **others}) for number in range(count)]


@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_shard(tmp_path: Path, way: str) -> None:
    data = bytearray(encode_records(rows(64)))
    data[len(data) * 50 // 64] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    dataset = TFRecordDataset(str(tmp_path / "damaged")).distribute().batch(4).parse_example(FEATURES)
    with pytest.raises(CorruptRecordError, match=r"damaged, .*byte") as told:
        for _ in loaded(way, dataset):
            pass
    if way in ("loader", "process"):
        assert "record 50, byte" in str(told.value)


@pytest.mark.parametrize("way", WAYS)
def test_a_missing_feature(tmp_path: Path, way: str) -> None:
    (tmp_path / "shard").write_bytes(encode_records([*rows(10), encode_example({"other": 1}), *rows(10)]))
    dataset = TFRecordDataset(str(tmp_path / "shard")).distribute().shuffle(8).batch(4).parse_example(FEATURES)
    with pytest.raises(FeatureError, match="feature 'id': found nothing") as told:
        for _ in loaded(way, dataset):
            pass
    said = "\n".join([str(told.value), *getattr(told.value, "__notes__", [])])
    assert f"{tmp_path / 'shard'}, record 10" in said


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_goes_away(leaving: Leaving, way: str) -> None:
    seen = 0
    with pytest.raises(StorageError, match="s3://bucket/train-"):
        for batch in loaded(way, leaving.dataset):
            seen += len(batch["id"])
            leaving.server.close()
    assert 0 < seen < RECORDS


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_that_is_killed(tmp_path: Path, persistent: bool) -> None:
    (tmp_path / "shard").write_bytes(encode_records([bytes(1000)] * 20_000))
    dataset = IterableDataset(TFRecordDataset(str(tmp_path / "shard")).distribute().repeat().batch(8))
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)
    batches = iter(loader)
    next(batches)
    os.kill(batches._workers[1].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"worker \(pid.* (killed|exited)"):
        for _ in batches:
            pass


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
def test_pinned_memory(tmp_path: Path, workers: int) -> None:
    (tmp_path / "shard").write_bytes(encode_records(rows(20)))
    dataset = TFRecordDataset(str(tmp_path / "shard")).distribute().batch(4).parse_example(FEATURES)
    loader: Any = DataLoader(IterableDataset(dataset), batch_size=None, num_workers=workers, pin_memory=True)
    for _ in range(2):
        assert sorted(number for batch in loader for number in batch["id"].tolist()) == list(range(20))
