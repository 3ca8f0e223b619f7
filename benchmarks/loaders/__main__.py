"""PyTorch loaders over a store that is far away: JPEGs and tokens, from 30 ms and 60 MB/s a
connection.

    make bench-loaders
        in an environment of its own, because the other loaders need other versions
    python -m benchmarks.loaders [--rounds 3] [--only images,tokens] [--sides Loader,WebDataset]

The store is `tests.servers.objectstore`; it and the loaders have the same cores. Each side
(`sides.py`) is a process of its own that reads all samples once into batches of tensors, each
library from its own format (`data.py`), with two workers where there are any. Rounds go through all
sides in turn, and medians count.

- `samples_s`: a whole epoch. The clock starts when the loader is made: starting workers counts,
  importing does not.
- `first_s`: from there to the first batch. `steady_s`: samples a second behind it.
- `cpu_ms`: processor time per sample, of workers too, without the store's.

All JPEGs are decoded by simplejpeg; tokens become int64, padded to the longest of the batch.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.loaders.data import KINDS, write
from benchmarks.loaders.measure import measured
from benchmarks.loaders.sides import PACKAGE_OF, PACKAGES, SIDES
from benchmarks.machine import describe, median, save
from tests.servers.faults import Faults
from tests.servers.program import ServerProcess

FAR = Faults(first_byte=0.03, rate=60e6)
FORMATS = {"WebDataset": "tar", "Mosaic": "mds", "LitData": "litdata"}
VERSIONS = (
    "torch",
    "torchdata",
    "webdataset",
    "mosaicml-streaming",
    "litdata",
    "tfrecord",
    "tensorflow-cpu",
)
FIGURES = ("samples_s", "first_s", "steady_s", "cpu_ms")


def main() -> None:
    """Runs all sides in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--sides", default=";".join(SIDES), help="with ; between them")
    given = parser.parse_args()
    sides = given.sides.split(";")
    machine, rows = describe(*VERSIONS, "simplejpeg", "s3fs") | {"rounds": given.rounds}, []
    for kind in given.only.split(","):
        rows += compared(kind, sides, given.rounds)
        save("loaders", {"machine": machine | {"load": round(os.getloadavg()[0], 1)}, "rows": rows})


def compared(kind: str, sides: list[str], rounds: int) -> list[dict[str, Any]]:
    """A row for each side."""
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(
        [*PACKAGES, *(PACKAGE_OF[side] for side in sides if side in PACKAGE_OF)]
    )
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as root:
        sizes = write(kind, Path(root) / "data", {FORMATS.get(side, "tfrecord") for side in sides})
        with ServerProcess("tests.servers.objectstore", ("--root", root), FAR) as store:
            for _ in range(rounds):
                for side in sides:
                    with ProcessPoolExecutor(1, forkserver) as process:
                        found[side].append(process.submit(measured, kind, side, store.url).result())
                        print(json.dumps({"side": side, **found[side][-1]}), flush=True)
    rows = []
    for side, runs in found.items():
        size = sizes[FORMATS.get(side, "tfrecord")]
        row = {"kind": kind, "side": side, "samples": KINDS[kind][0], "bytes": size}
        row |= {key: median(run[key] for run in runs) for key in FIGURES}
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
