"""A user's program as type checkers see it: `test_types.py` runs mypy and pyright over it.

Every `assert_type` is an error of the checker if it reveals another type. Nothing here runs.
"""

import asyncio
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

from streamrec import Dataset, FixedLenFeature, Frames, TFRecordDataset
from streamrec.pipeline.iterators import DatasetIterator

Parsed = dict[str, npt.NDArray[Any] | Any]

FEATURES = {"label": FixedLenFeature([], "int64")}


def size(frames: Frames) -> int:
    return len(frames)


async def fetched(frames: Frames) -> str:
    await asyncio.sleep(0)
    return str(len(frames))


def parts(number: np.int64, record: bytes) -> tuple[int, bytes]:
    return int(number), record


async def joined(number: int, record: bytes) -> str:
    await asyncio.sleep(0)
    return f"{number}{record!r}"


def total(state: int, record: bytes) -> tuple[int, float]:
    return state + len(record), state / 2


def of_anything(element: Any) -> float:
    return float(element)


def of_any_pair(one: Any, other: Any) -> float:
    return float(one + other)


records = TFRecordDataset("train-*.tfrecord")
assert_type(records, Dataset[bytes])
assert_type(records.shuffle(10).take(3).repeat().prefetch(2).cache(), Dataset[bytes])
assert_type(records.ignore_errors().distribute(), Dataset[bytes])

batches = records.batch(32, drop_remainder=True)
assert_type(batches, Dataset[Frames])
assert_type(batches.rebatch(8), Dataset[Frames])
assert_type(batches.unbatch(), Dataset[bytes])

parsed = batches.parse_example(FEATURES)
assert_type(parsed, Dataset[Parsed])
assert_type(parsed.filter(lambda batch: batch["label"].any()), Dataset[Parsed])

assert_type(batches.map(size), Dataset[int])
assert_type(batches.map(fetched, num_parallel_calls=4), Dataset[str])
assert_type(records.map(len), Dataset[int])
assert_type(records.map(bytes.upper), Dataset[bytes])
assert_type(records.map(lambda record: record.decode()), Dataset[str])
assert_type(records.map(of_anything), Dataset[float])

numbered = records.enumerate()
assert_type(numbered, Dataset[tuple[np.int64, bytes]])
assert_type(numbered.map(parts), Dataset[tuple[int, bytes]])
assert_type(numbered.map(parts).map(joined), Dataset[str])
assert_type(numbered.map(lambda number, record: record), Dataset[Any])

assert_type(Dataset.list_files("a*").interleave(TFRecordDataset), Dataset[bytes])
assert_type(Dataset.list_files("a*").flat_map(TFRecordDataset), Dataset[bytes])
assert_type(Dataset.zip(records, batches), Dataset[tuple[bytes, Frames]])
assert_type(Dataset.zip(records, batches, records), Dataset[tuple[bytes, Frames, bytes]])
assert_type(Dataset.zip({"a": records, "b": batches}), Dataset[Any])
assert_type(Dataset.sample_from_datasets([records, records]), Dataset[bytes])
assert_type(records.concatenate(records), Dataset[bytes])
assert_type(records.apply(lambda dataset: dataset.batch(3)), Dataset[Frames])
assert_type(records.scan(0, total), Dataset[float])

anything = Dataset.from_tensor_slices([1, 2])
assert_type(anything, Dataset[Any])
assert_type(anything.batch(2), Dataset[Any])
assert_type(anything.batch(2).unbatch(), Dataset[Any])
assert_type(anything.map(lambda number: number + 1), Dataset[Any])
assert_type(anything.map(of_anything), Dataset[float])
assert_type(Dataset.zip((anything, anything)).map(of_any_pair), Dataset[float])


def train() -> None:
    for batch in parsed:
        assert_type(batch, Parsed)
        print(batch["label"].mean())
    with batches.iterate() as run:
        assert_type(run, DatasetIterator[Frames])
        assert_type(next(run), Frames)


async def read() -> None:
    async for record in records:
        assert_type(record, bytes)
