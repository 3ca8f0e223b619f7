"""How one pass over the shards of `benchmarks.shards` is written for each contender: an iterator of
batches.

Each has ways of writing it; `benchmarks.pipeline` tries them all, and takes the best of each side.
Packages are imported where they are used: a process has one side, and its memory is that of this
side alone.

- streamrec: 16 shards interleaved record by record in the fixed order, `shuffle`, `batch`,
  `parse_example`, one batch at a time or AUTOTUNE. Byte strings come as `bytes` objects, or as
  spans (`string_columns`).
- tf.data: parallel interleave, all numbers left to AUTOTUNE, `tf.io.parse_example` on batches,
  prefetch; deterministic and not; shards taken record by record, and 16 records in turn.
- Where rows are to be padded by `padded_batch` (the row "padded"): both parse batches to ragged
  tensors and take them apart with `unbatch`; tf.data also parses record by record.
- DataLoader: two workers, each with half of the shards, over the records of vahidk's `tfrecord`,
  and its shuffle with half of the buffer each; torch's own collate, `pad_sequence` for tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.shards import SHARDS, Kind
from streamrec import FixedLenFeature

__all__ = ["SIDES", "ways"]

Pass = Callable[[], Iterator[Any]]
"""Starts a pass; gives its batches, dicts of columns."""


def streamrec_ways(
    kind: Kind, paths: Sequence[str], shuffled: bool, endless: bool
) -> dict[str, Pass]:
    """Ours."""
    import streamrec

    records = streamrec.TFRecordDataset(paths, num_parallel_reads=SHARDS)
    records = records.with_options(memory_budget=kind.budget)
    if shuffled and kind.shuffle:
        records = records.shuffle(kind.shuffle, seed=1)
    batches = (records.repeat() if endless else records).batch(kind.batch)
    strings = any(feature.dtype is bytes for feature in kind.features.values())
    made = {
        "parse_example"
        + ", AUTOTUNE" * (calls is not None)
        + ", string_columns" * columns: batches.parse_example(
            kind.features, string_columns=columns, num_parallel_calls=calls
        )
        for columns in ([False, True] if strings else [False])
        for calls in (None, streamrec.AUTOTUNE)
    }
    if kind.in_rows:
        made = {way: parsed.unbatch().padded_batch(kind.batch) for way, parsed in made.items()}
    return {way: dataset.iterate for way, dataset in made.items()}


def tensorflow_ways(
    kind: Kind, paths: Sequence[str], shuffled: bool, endless: bool
) -> dict[str, Pass]:
    """tf.data's."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    auto = tf.data.AUTOTUNE
    types = {np.int64: tf.int64, np.float32: tf.float32, bytes: tf.string}
    features: dict[str, Any] = {}
    for name, feature in kind.features.items():
        if kind.padded:
            features[name] = tf.io.FixedLenSequenceFeature(
                [], types[feature.dtype], allow_missing=True
            )
        else:
            assert isinstance(feature, FixedLenFeature)  # all others are padded
            features[name] = tf.io.FixedLenFeature(
                feature.shape, types[feature.dtype], feature.default_value
            )

    in_rows = {
        name: tf.io.RaggedFeature(types[feature.dtype]) for name, feature in kind.features.items()
    }

    def rows_of(record: Any) -> Any:
        return tf.io.parse_single_example(record, features)

    def tensors(row: Any) -> Any:  # for TensorFlow they are ragged tensors of no ragged dimension
        return {name: tf.convert_to_tensor(values) for name, values in row.items()}

    def made(deterministic: bool, block: int, single: bool = False) -> Any:
        shards = tf.data.Dataset.from_tensor_slices(list(paths))
        records = shards.interleave(
            lambda path: tf.data.TFRecordDataset(path, buffer_size=1 << 20),
            SHARDS,
            block,
            auto,
            deterministic,
        )
        if shuffled and kind.shuffle:
            records = records.shuffle(kind.shuffle, seed=1)
        records = records.repeat() if endless else records
        if single:
            return records.map(rows_of, auto, deterministic).padded_batch(kind.batch).prefetch(auto)
        batches = records.batch(kind.batch, num_parallel_calls=auto, deterministic=deterministic)
        if kind.in_rows:
            parsed = batches.map(
                lambda batch: tf.io.parse_example(batch, in_rows), auto, deterministic
            )
            rows = parsed.unbatch().map(tensors, auto, deterministic)
            return rows.padded_batch(kind.batch).prefetch(auto)
        parsed = batches.map(
            lambda batch: tf.io.parse_example(batch, features), auto, deterministic
        )
        return parsed.prefetch(auto)

    found = {
        f"{'deterministic' if deterministic else 'not deterministic'}, block_length={block}": made(
            deterministic, block
        )
        for deterministic in (True, False)
        for block in (1, 16)
    }
    if kind.in_rows:
        found["not deterministic, block_length=16, parse_single_example"] = made(
            False, 16, single=True
        )
    return {way: partial(iter, dataset) for way, dataset in found.items()}


def dataloader_ways(
    kind: Kind, paths: Sequence[str], shuffled: bool, endless: bool
) -> dict[str, Pass]:
    """A torch DataLoader's with two workers over `tfrecord`."""
    import torch
    from tfrecord.iterator_utils import shuffle_iterator
    from tfrecord.reader import example_loader
    from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

    class Records(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            assert worker is not None
            mine = paths[worker.id :: worker.num_workers]
            loaded = (
                record
                for path in (cycle(mine) if endless else mine)
                for record in example_loader(path, None, dict(kind.tfrecord_types))
            )
            return (
                shuffle_iterator(loaded, kind.shuffle // 2) if shuffled and kind.shuffle else loaded
            )

    def padded(rows: list[dict[str, Any]]) -> dict[str, Any]:
        values = [torch.from_numpy(row["tokens"]) for row in rows]
        return {"tokens": torch.nn.utils.rnn.pad_sequence(values, batch_first=True)}

    collate = padded if kind.padded else default_collate
    loader: Any = DataLoader(
        Records(), kind.batch, num_workers=2, collate_fn=collate, prefetch_factor=4
    )
    return {"2 workers": partial(iter, loader)}


SIDES = {
    "streamrec": streamrec_ways,
    "tf.data": tensorflow_ways,
    "DataLoader": dataloader_ways,
}


def ways(
    side: str, kind: Kind, paths: Sequence[str], shuffled: bool, endless: bool = False
) -> dict[str, Pass]:
    """The ways to write one pass for one side, by name; or a pass that never ends."""
    return SIDES[side](kind, paths, shuffled, endless)
