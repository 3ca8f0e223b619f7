"""Writing Examples against TensorFlow's Python path, as ratios measured in one run.

    python -m benchmarks.encode [--rounds 3]

- TensorFlow: `tf.train.Example(features=...)` out of the tutorial's helpers, then
  `SerializeToString()`. Its input is Python scalars and lists, made before the clock starts: the
  form that its messages take fastest.
- encode_example: the same mapping, record by record.
- encode_examples: columns (NumPy arrays, a RaggedTensor, lists of bytes) in batches of 1,024, one
  core. Its bar is 10 times TensorFlow.

The contenders take turns in each round. Every record is checked, once, to be the same message as
TensorFlow's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.harness.meter import Figures, Meter
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn
from streamrec.example import RaggedTensor, encode_example, encode_examples

BATCH = 1024
BAR = 10.0
WORDS = [b"cat", b"dog", b"chicken", b"horse", b"goat"]


@dataclass(frozen=True)
class Workload:
    """The same records as columns and as one mapping each, and what limits us where the bar is
    missed.
    """

    name: str
    columns: dict[str, Any]
    rows: list[dict[str, Any]]
    batches: int
    limit: str = ""


def workloads() -> list[Workload]:
    """The five kinds of records that are measured."""
    rng = np.random.default_rng(7)
    tutorial = {
        "feature0": rng.integers(0, 2, BATCH),
        "feature1": rng.integers(0, 5, BATCH),
        "feature2": [WORDS[i] for i in rng.integers(0, 5, BATCH)],
        "feature3": rng.standard_normal(BATCH).astype(np.float32),
    }
    forty: dict[str, Any] = {f"int{i:02}": rng.integers(0, 2**31, BATCH) for i in range(20)}
    forty |= {f"float{i:02}": rng.standard_normal(BATCH).astype(np.float32) for i in range(20)}
    lengths = rng.integers(200, 1001, BATCH)
    tokens = rng.integers(0, 50_000, lengths.sum())
    ragged = RaggedTensor(tokens, (np.concatenate([[0], np.cumsum(lengths)]),))
    dense = {f"dense{i}": rng.standard_normal((BATCH, 64)).astype(np.float32) for i in range(8)}
    images = {"image": [rng.bytes(110_000) for _ in range(64)], "label": rng.integers(0, 1000, 64)}
    return [
        Workload("four scalar features", tutorial, rows_of(tutorial), 8),
        Workload("forty scalar features", forty, rows_of(forty), 2),
        Workload("one ragged int64 of 200 to 1,000", {"tokens": ragged}, ragged_rows(ragged), 2),
        Workload("eight dense float[64]", dense, rows_of(dense), 2),
        Workload(
            "image of 110 kB and label",
            images,
            rows_of(images),
            2,
            "memory: the bytes are copied once",
        ),
    ]


def rows_of(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Columns as one mapping a record, of Python values."""
    lists = {
        name: column if isinstance(column, list) else column.tolist()
        for name, column in columns.items()
    }
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def ragged_rows(ragged: RaggedTensor) -> list[dict[str, Any]]:
    """A ragged column as one mapping a record."""
    splits = ragged.nested_row_splits[0].tolist()
    flat = np.asarray(ragged.flat_values).tolist()
    return [{"tokens": flat[splits[i] : splits[i + 1]]} for i in range(len(splits) - 1)]


def tf_feature(value: Any) -> Any:
    """The tutorial's three helpers in one: the kind is that of the first value."""
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def tf_record(row: dict[str, Any]) -> bytes:
    """One record by TensorFlow."""
    features = tf.train.Features(feature={name: tf_feature(value) for name, value in row.items()})
    return bytes(tf.train.Example(features=features).SerializeToString())


def speed(work: Callable[[], Any], records: int, times: int) -> Figures:
    """Records a second of so many runs."""
    with Meter() as meter:
        for _ in range(times):
            work()
    return {"records_s": records * times / meter.seconds}


def check(load: Workload) -> None:
    """All contenders write the same messages."""
    for row, ours in zip(load.rows, encode_examples(load.columns), strict=True):
        theirs = tf.train.Example.FromString(tf_record(row))
        assert tf.train.Example.FromString(ours) == theirs
        assert tf.train.Example.FromString(encode_example(row)) == theirs


def measure(load: Workload, rounds: int) -> dict[str, Any]:
    """One row."""
    check(load)
    count = len(load.rows)
    by_rows, by_columns = load.batches, load.batches * 10
    sides = {
        "tensorflow": lambda: speed(lambda: [tf_record(row) for row in load.rows], count, by_rows),
        "encode_example": lambda: speed(
            lambda: [encode_example(row) for row in load.rows], count, by_rows
        ),
        "encode_examples": lambda: speed(lambda: encode_examples(load.columns), count, by_columns),
    }
    taken = in_turn(sides, rounds)
    ratio = taken.ratio("records_s", "encode_examples", "tensorflow")
    return {
        "records": load.name,
        "records_per_second": taken.by_side("records_s"),
        "ratio": ratio,
        "ratio_record_by_record": taken.ratio("records_s", "encode_example", "tensorflow"),
        "bar": BAR,
        "met": ratio >= BAR,
        "note": "" if ratio >= BAR else load.limit,
        **taken.calm,
    }


def main(*, rounds: int = 3) -> None:
    """A row for each kind of records."""
    rows = []
    for load in workloads():
        rows.append(measure(load, rounds))
        print(rows[-1], flush=True)
    save("encode", ["numpy", "protobuf", "tensorflow-cpu"], rounds=rounds, rows=rows)


if __name__ == "__main__":
    run(main)
