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

import json
import multiprocessing
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.meter import Figures
from benchmarks.harness.program import Names, run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn
from benchmarks.loaders.data import KINDS, write
from benchmarks.loaders.measure import measured
from benchmarks.loaders.sides import PACKAGE_OF, PACKAGES, SIDES
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


def main(*, rounds: int = 2, only: Names = tuple(KINDS), sides: Names = tuple(SIDES)) -> None:
    """Runs all sides in turn."""
    rows = []
    for kind in only:
        rows += compared(kind, sides, rounds)
        save("loaders", [*VERSIONS, "simplejpeg", "s3fs"], rounds=rounds, rows=rows)


def compared(kind: str, names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """A row for each side."""
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(
        [*PACKAGES, *(PACKAGE_OF[name] for name in names if name in PACKAGE_OF)]
    )

    def side(name: str, url: str) -> Figures:
        # A child of the fork server: what is imported before the clock starts is imported once.
        with ProcessPoolExecutor(1, forkserver) as process:
            figures = process.submit(measured, kind, name, url).result()
        print(json.dumps({"side": name, **figures}), flush=True)
        return figures

    with tempfile.TemporaryDirectory() as root:
        formats = {name: FORMATS.get(name, "tfrecord") for name in names}
        sizes = write(kind, Path(root) / "data", set(formats.values()))
        with ServerProcess("tests.servers.objectstore", ("--root", root), FAR) as store:
            taken = in_turn({name: partial(side, name, store.url) for name in names}, rounds)
    about = {"kind": kind, "samples": KINDS[kind][0]}
    return [
        {**about, "side": name, "bytes": sizes[formats[name]], **taken.medians(name), **taken.calm}
        for name in names
    ]


if __name__ == "__main__":
    run(main)
