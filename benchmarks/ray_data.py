"""Reading tabular records into Ray Data: streamrec.ray beside Ray's own reader, and beside Parquet.

    python -m benchmarks.ray_data [--rounds 3] [--rows 40000]

- streamrec.ray.read_tfrecords with a feature description.
- ray.data.read_tfrecords, which parses with TensorFlow's messages in Python, makes an Arrow table
  of each record, and joins these: minutes for 200,000 records. So it has one round, the first.
- ray.data.read_parquet of the same columns, as `streamrec convert` writes them.

A record has an id, a label, six floats and a short string; there are eight shards. All read with
eight tasks on two workers, and every batch is taken by the driver as Arrow. A round of few records
starts workers and imports, and does not count. The contenders take turns. Sums of the ids are
compared.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from functools import partial
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
from benchmarks.harness.meter import Figures, Meter
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn
from streamrec.cli import program
from streamrec.ray import read_tfrecords

SHARDS = 8
WORKERS = 2
WARM_ROWS = 100 * SHARDS
OURS = "streamrec.ray.read_tfrecords"
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
        OURS: lambda: read_tfrecords(shards, FEATURES, override_num_blocks=SHARDS),
        SLOW: lambda: ray.data.read_tfrecords(shards, override_num_blocks=SHARDS),
        "ray.data.read_parquet": lambda: ray.data.read_parquet(tables, override_num_blocks=SHARDS),
    }


def rate(name: str, make: Callable[[], Any], rows: int) -> Figures:
    """Rows a second of a contender, which must read all of them."""
    with Meter() as meter:
        assert taken(make()) == (rows, rows * (rows - 1) // 2), name
    return {"rows_s": rows / meter.seconds}


def sides(folder: Path, rows: int) -> dict[str, Callable[[], Figures]]:
    """The contenders over a folder."""
    return {name: partial(rate, name, make, rows) for name, make in contenders(folder).items()}


def main(*, rounds: int = 3, rows: int = 40_000) -> None:
    """All contenders in turn."""
    ray.init(
        num_cpus=WORKERS, include_dashboard=False, object_store_memory=1 << 30, log_to_driver=False
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as few, tempfile.TemporaryDirectory() as many:
        write(Path(few), WARM_ROWS)
        size = write(Path(many), rows)
        for warm in sides(Path(few), WARM_ROWS).values():
            warm()
        found = in_turn(sides(Path(many), rows), rounds, once=[SLOW])
    ray.shutdown()
    names = list(found.taken[0])
    speeds = found.by_side("rows_s")
    ratios = {name: found.ratio("rows_s", OURS, name) for name in names}
    each = {name: [one[name]["rows_s"] for one in found.taken] for name in names}
    each[SLOW] = each[SLOW][:1]
    settings = {"rows": rows, "record_bytes": size, "shards": SHARDS, "workers": WORKERS}
    packages = ["streamrec", "ray", "tensorflow-cpu", "pyarrow"]
    measures = {"rows_per_second": speeds, "ratio": ratios, "rounds": each}
    save("ray_data", packages, **settings, **measures)
    for name, speed in speeds.items():
        print(f"{name:32} {speed:12,.0f} rows/s   streamrec is {ratios[name]:.3g} times as fast")


if __name__ == "__main__":
    run(main)
