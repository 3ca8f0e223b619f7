"""Caches of strangers: bytes that are no elements, under a right CRC32C, are one clear error."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import streamrec
from streamrec import Dataset, RecordSource, StorageError, StreamrecError, TFRecordDataset, TFRecordWriter
from streamrec.tfrecord import Framer


def records_of(path: Path) -> list[bytes]:
    Dataset.from_tensor_slices({"a": [1, 2, 3], "b": ["x", "y", "z"]}).save(str(path))
    return list(Framer().feed(path.read_bytes()))


def load(path: Path, records: list[bytes]) -> list[Any]:
    path.write_bytes(streamrec.encode_records(records))
    return list(Dataset.load(str(path)))


def test_a_deep_head(tmp_path: Path) -> None:
    head, *rest = records_of(tmp_path / "a")
    with pytest.raises(StreamrecError):
        load(tmp_path / "b", [head[:1] + b"[" * 200_000, *rest])


def test_blocks_that_are_no_elements(tmp_path: Path) -> None:
    head, block, *rest = records_of(tmp_path / "a")
    drawn = random.Random(3)
    for _ in range(200):
        data = bytearray(block)
        for _ in range(drawn.choice([1, 2, 4])):
            data[drawn.randrange(len(data))] = drawn.choice(b'0123456789[]"\x00\xff')
        with suppress(StreamrecError):
            load(tmp_path / "b", [head, bytes(data), *rest])


def written(name: str) -> None:
    with TFRecordWriter(name) as writer:
        writer.write(b"a")


@pytest.mark.parametrize("name", ["/tmp/a\0b", "/tmp/a\ud800", "http://127.0.0.1:1/\0", "s3://bucket/\ud800"])
@pytest.mark.parametrize(
    "call",
    [
        lambda name: list(TFRecordDataset(name)),
        lambda name: list(TFRecordDataset([name, name], num_parallel_reads=2)),
        lambda name: list(Dataset.range(3).cache(name)),
        lambda name: Dataset.range(3).save(name),
        lambda name: list(Dataset.load(name)),
        lambda name: asyncio.run(streamrec.verify(f"{name}.json")),
        lambda name: asyncio.run(RecordSource.open(name)),
        written,
    ],
)
def test_names_that_no_store_takes(call: Callable[[str], Any], name: str) -> None:
    with pytest.raises(StorageError, match="this name"):
        call(name)
