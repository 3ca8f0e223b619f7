"""Bad input through what needs no framework: `for`, `async for` and Arrow. One clear error, and no hang."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrec import Dataset, FixedLenFeature, StreamrecError, TFRecordDataset, encode_example, encode_records
from tests.adapters.conftest import RECORDS, Leaving

FEATURES = {"id": FixedLenFeature((), np.int64)}


async def in_a_loop(dataset: Dataset[Any]) -> AsyncIterator[Any]:
    for batch in dataset:
        yield batch


async def on_the_loop(dataset: Dataset[Any]) -> AsyncIterator[Any]:
    async with dataset.aiterate() as batches:
        async for batch in batches:
            yield batch


async def through_arrow(dataset: Dataset[Any]) -> AsyncIterator[Any]:
    for batch in dataset.to_arrow():
        yield {"id": batch["id"].to_numpy()}


needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")

ways = pytest.mark.parametrize("way", [in_a_loop, on_the_loop, pytest.param(through_arrow, marks=needs_pyarrow)])
Way = Callable[[Dataset[Any]], AsyncIterator[Any]]


async def failure(batches: AsyncIterator[Any], between: Callable[[], object] = lambda: None) -> tuple[int, str]:
    """How many ids came, and the one error behind them, with its notes."""
    seen = 0
    with pytest.raises((StreamrecError, OSError)) as told:
        async for batch in batches:
            seen += len(batch["id"])
            between()
    return seen, "\n".join([f"{told.type.__name__}: {told.value}", *getattr(told.value, "__notes__", [])])


@ways
async def test_a_damaged_shard(tmp_path: Path, way: Way) -> None:
    data = bytearray(encode_records([encode_example({"id": number}) for number in range(64)]))
    data[len(data) * 50 // 64] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    seen, said = await failure(way(TFRecordDataset(str(tmp_path / "damaged")).batch(4).parse_example(FEATURES)))
    assert seen == 50
    assert "CorruptRecordError: " in said
    assert f"{tmp_path / 'damaged'}, record 50, byte" in said


@ways
async def test_a_missing_feature_behind_a_shuffle(tmp_path: Path, way: Way) -> None:
    rows = [encode_example({"id": number} if number != 10 else {"other": 1}) for number in range(21)]
    (tmp_path / "shard").write_bytes(encode_records(rows))
    _, said = await failure(way(TFRecordDataset(str(tmp_path / "shard")).shuffle(8).batch(4).parse_example(FEATURES)))
    assert "FeatureError: " in said
    assert "feature 'id': found nothing" in said
    assert said.endswith(f"{tmp_path / 'shard'}, record 10")


@ways
async def test_a_server_that_goes_away(leaving: Leaving, way: Way) -> None:
    seen, said = await failure(way(leaving.dataset), leaving.server.close)
    assert 0 < seen < RECORDS
    assert "StorageError: " in said
    assert "s3://bucket/train-" in said
