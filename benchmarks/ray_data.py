"""Reading tabular records into Ray Data: streamrec.ray beside Ray's own reader, and beside Parquet.

Run it from the project's root, where Ray and TensorFlow are installed and nothing else keeps the
machine busy:

    python -m benchmarks.ray_data [--rounds 3] [--rows 40000]

- streamrec.ray.read_tfrecords with a feature description.
- ray.data.read_tfrecords, which parses with TensorFlow's messages in Python, makes an Arrow table
  of each record, and joins these: minutes for 200,000 records. So it has one round, the first.
- ray.data.read_parquet of the same columns, as `streamrec convert` writes them.

A record has an id, a label, six floats and a short string; there are eight shards. All read with
eight tasks on two workers, and every batch is taken by the driver as Arrow. A round of few records
starts workers and imports, and does not count. The contenders take turns, and medians count. Sums
of the ids are compared. The result goes to results/ray_data.json.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
os.environ.setdefault("RAY_worker_niceness", "0")

import numpy as np
import pyarrow.compute
import ray

import streamrec
from benchmarks.machine import describe, median, save
from streamrec.cli import program
from streamrec.ray import read_tfrecords

SHARDS = 8
WORKERS = 2
WARM_ROWS = 100 * SHARDS
SLOW = "ray.data.read_tfrecords"
FLOATS = [f"x{number}" for number in range(6)]
FEATURES: dict[str, Any] = {
    "id": streamrec.FixedLenFeature([], "int64"),
    "label": streamrec.FixedLenFeature([], "int64"),
    "name": streamrec.FixedLenFeature([], "string"),
} | {name: streamrec.FixedLenFeature([], "float32") for name in FLOATS}


def write(folder: Path, rows: int) -> int:
    """The shards, and Parquet files of the same rows; returns the bytes of a record."""
    random = np.random.default_rng(7)
    each = rows // SHARDS
    for shard in range(SHARDS):
        ids = np.arange(shard * each, (shard + 1) * each)
        columns: dict[str, Any] = {"id": ids, "label": random.integers(0, 10, each)}
        columns |= {name: random.standard_normal(each).astype(np.float32) for name in FLOATS}
        columns["name"] = [b"name %d" % number for number in ids]
        records = streamrec.encode_examples(columns)
        source = folder / f"train-{shard}.tfrecord"
        source.write_bytes(streamrec.encode_records(records))
        assert program.run(["convert", str(source), str(folder / f"train-{shard}.parquet")]) == 0
    return len(records[0])


def taken(dataset: Any) -> tuple[int, int]:
    """Reads all of a dataset; its rows, and the sum of their ids."""
    count = total = 0
    for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        count += batch.num_rows
        total += pyarrow.compute.sum(batch["id"]).as_py()
    return count, total


def contenders(folder: Path) -> dict[str, Callable[[], Any]]:
    """Who reads a folder, and how."""
    shards = [str(folder / f"train-{shard}.tfrecord") for shard in range(SHARDS)]
    tables = [str(folder / f"train-{shard}.parquet") for shard in range(SHARDS)]
    return {
        "streamrec.ray.read_tfrecords": lambda: read_tfrecords(
            shards, FEATURES, override_num_blocks=SHARDS
        ),
        SLOW: lambda: ray.data.read_tfrecords(shards, override_num_blocks=SHARDS),
        "ray.data.read_parquet": lambda: ray.data.read_parquet(tables, override_num_blocks=SHARDS),
    }


def rate(name: str, make: Callable[[], Any], rows: int) -> float:
    """Rows a second of a contender, which must read all of them."""
    start = time.perf_counter()
    assert taken(make()) == (rows, rows * (rows - 1) // 2), name
    return rows / (time.perf_counter() - start)


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=40_000)
    arguments = parser.parse_args()
    ray.init(
        num_cpus=WORKERS, include_dashboard=False, object_store_memory=1 << 30, log_to_driver=False
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as few, tempfile.TemporaryDirectory() as many:
        write(Path(few), WARM_ROWS)
        size = write(Path(many), arguments.rows)
        for name, make in contenders(Path(few)).items():
            rate(name, make, WARM_ROWS)
        speeds: dict[str, list[float]] = {}
        for number in range(arguments.rounds):
            for name, make in contenders(Path(many)).items():
                if number == 0 or name != SLOW:
                    speeds.setdefault(name, []).append(rate(name, make, arguments.rows))
    ray.shutdown()
    medians = {name: median(values) for name, values in speeds.items()}
    ours = medians["streamrec.ray.read_tfrecords"]
    ratios = {name: float(f"{ours / speed:.3g}") for name, speed in medians.items()}
    found = {"rows": arguments.rows, "record_bytes": size, "shards": SHARDS, "workers": WORKERS}
    machine = describe("streamrec", "ray", "tensorflow-cpu", "pyarrow")
    save(
        "ray_data",
        {
            "machine": machine,
            **found,
            "rows_per_second": medians,
            "ratio": ratios,
            "rounds": speeds,
        },
    )
    for name, speed in medians.items():
        print(f"{name:32} {speed:12,.0f} rows/s   streamrec is {ratios[name]:.3g} times as fast")


if __name__ == "__main__":
    main()
