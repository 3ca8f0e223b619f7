"""Reading tabular records into Ray Data: streamrec.ray beside Ray's own reader, and beside Parquet.

Run it from the project's root, where Ray and TensorFlow are installed and nothing else keeps the machine busy:

    python -m benchmarks.ray_data [--rounds 5] [--rows 200000]

- streamrec.ray.read_tfrecords with a feature description.
- ray.data.read_tfrecords, which parses with TensorFlow's messages in Python.
- ray.data.read_parquet of the same columns, as `streamrec convert` writes them.

A record has an id, a label, six floats and a short string; there are eight shards. All read with eight tasks on two
workers, and every batch is taken by the driver as Arrow. The contenders take turns, and medians count. Sums of the
ids are compared. The result goes to results/ray_data.json.
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

import numpy as np
import pyarrow.compute
import ray

import streamrec
from benchmarks.machine import describe, median, save
from streamrec.cli import program
from streamrec.ray import read_tfrecords

SHARDS = 8
WORKERS = 2
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


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=200_000)
    arguments = parser.parse_args()
    ray.init(num_cpus=WORKERS, include_dashboard=False, object_store_memory=1 << 30, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write(folder, arguments.rows)
        shards = [str(folder / f"train-{shard}.tfrecord") for shard in range(SHARDS)]
        tables = [str(folder / f"train-{shard}.parquet") for shard in range(SHARDS)]
        contenders: dict[str, Callable[[], Any]] = {
            "streamrec.ray.read_tfrecords": lambda: read_tfrecords(shards, FEATURES, override_num_blocks=SHARDS),
            "ray.data.read_tfrecords": lambda: ray.data.read_tfrecords(shards, override_num_blocks=SHARDS),
            "ray.data.read_parquet": lambda: ray.data.read_parquet(tables, override_num_blocks=SHARDS),
        }
        wanted = (arguments.rows, arguments.rows * (arguments.rows - 1) // 2)
        speeds: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(arguments.rounds + 1):
            for name, make in contenders.items():
                start = time.perf_counter()
                assert taken(make()) == wanted, name
                if number:  # the first round starts workers and imports
                    speeds[name].append(arguments.rows / (time.perf_counter() - start))
    ray.shutdown()
    medians = {name: median(values) for name, values in speeds.items()}
    ours = medians["streamrec.ray.read_tfrecords"]
    ratios = {name: float(f"{ours / speed:.3g}") for name, speed in medians.items()}
    found = {"rows": arguments.rows, "record_bytes": size, "shards": SHARDS, "workers": WORKERS}
    machine = describe("streamrec", "ray", "tensorflow-cpu", "pyarrow")
    save("ray_data", {"machine": machine, **found, "rows_per_second": medians, "ratio": ratios, "rounds": speeds})
    for name, speed in medians.items():
        print(f"{name:32} {speed:12,.0f} rows/s   streamrec is {ratios[name]:.3g} times as fast")


if __name__ == "__main__":
    main()
