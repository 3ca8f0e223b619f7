"""Several epochs from a bucket through a cache on a local disk, beside MosaicML Streaming and
WebDataset.

    python -m benchmarks.disk_cache [--megabytes 160] [--sides streamrec,WebDataset,Mosaic]
        [--only rows,gcs,overhead] [--rounds 5] [--peers .venv-loaders/bin/python] [--seconds 30]

Each library reads the same images of 100 kB from its own format, in shards of 4 MB, from the same
SeaweedFS; streamrec also from a fake-gcs-server. An nginx in front of the server counts requests
and bytes. The limit of the cache is 100 %, 50 % or 10 % of the data, and 1 % more. There are three
epochs, of one process or of four ranks that share the cache, in the same order each time.
"shuffled" rows have the shards in another order in each epoch. A row has for each epoch:

- `read`: the bytes that the store sent, as a part of the data, and `requests`;
- `seconds`, from when the ranks are told to begin until the last one ends. The first epoch has
  what the libraries do when they are constructed. Imports are not in it;
- `cpu_s_gb`: processor seconds of all ranks and their children for each GB of images.

`disk` is the most that the cache took of the disk, as a part of the data. "killed" rows have epoch
1, and epoch 2 of a new process after one that was killed in the middle of epoch 2. A limit below
one shard is tried with shards of 20 MB. What fails, or takes longer than `--seconds`, is the
`error` of its row. What is not a library's default is in `sides.py`.

`overhead` compares streamrec's cache with no cache and with local files: times and processor times.

The other libraries are in an environment of their own (`make bench-loaders` makes it). A run that
is not dry also writes the tables of the guide "Train several epochs from a bucket".
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import stores
from benchmarks.disk_cache import overhead
from benchmarks.disk_cache.data import FORMATS, WRITERS, Shape, versions_of
from benchmarks.disk_cache.page import write_page
from benchmarks.disk_cache.runs import Bucket, Case, Runner
from benchmarks.disk_cache.sides import DISTRIBUTIONS, PEERS, SIDES
from benchmarks.harness.process import ROOT, in_own_process
from benchmarks.harness.program import Names, run
from benchmarks.harness.results import save
from tests.servers.real import Running, counted, fake_gcs, seaweedfs

LIMITS = (1.0, 0.5, 0.1)
PROCESSES = (1, 4)
SHARD_IMAGES = 40
"""The images of a shard of 4 MB. MosaicML Streaming wants room for four shards: that is 10 %."""

LARGE = Shape(8, 200)
LARGE_LIMIT = 0.1
"""Less than one of eight shards."""

Row = dict[str, Any]


def main(
    *,
    megabytes: int = 160,
    sides: Names = tuple(SIDES),
    only: Names = ("rows", "gcs", "overhead"),
    rounds: int = 5,
    peers: str = str(ROOT / ".venv-loaders" / "bin" / "python"),
    seconds: float = 30.0,
) -> int:
    """All rows."""
    asked = [side for side in sides if side in PEERS]
    if asked and not Path(peers).exists():
        print(f"{peers} does not exist: type `make bench-loaders`, or give --sides streamrec")
        return 1
    found: dict[str, Any] = {}
    small = Shape(max(1, megabytes * 10 // SHARD_IMAGES), SHARD_IMAGES)
    runner = Runner(peers, seconds)
    if "rows" in only:
        found["rows"] = [*rows_of(small, sides, runner), *large_rows(sides, runner)]
    if "gcs" in only:
        found["gcs"] = gcs_rows(small, runner)
    if "overhead" in only:
        with ExitStack() as stack:
            with stores.last_core():
                store = stack.enter_context(seaweedfs())
            found["overhead"] = overhead.compared(store, rounds, tuple(overhead.WORKS))
    versions = in_own_process(versions_of, python=peers, names=names_of(asked)) if asked else {}
    settings = {"megabytes": megabytes, "rounds": rounds, "peers": versions}
    if save("disk_cache", DISTRIBUTIONS["streamrec"], **settings, **found) and len(found) == 3:
        write_page()
    return 0


def rows_of(shape: Shape, sides: Sequence[str], runner: Runner) -> list[Row]:
    """All rows of shards of 4 MB."""
    cases = [
        Case(side=side, limit=limit, processes=processes)
        for processes in PROCESSES
        for limit in LIMITS
        for side in sides
    ]
    cases += [Case(side=side, limit=0.5, shuffled=True) for side in sides]
    cases += [Case(side=side, limit=limit, killed=True) for limit in (1.0, 0.5) for side in sides]
    return measured(seaweedfs(), shape, cases, runner)


def large_rows(sides: Sequence[str], runner: Runner) -> list[Row]:
    """Rows of a limit below one shard."""
    cases = [Case(side=side, limit=LARGE_LIMIT) for side in sides]
    return measured(seaweedfs(), LARGE, cases, runner)


def gcs_rows(shape: Shape, runner: Runner) -> list[Row]:
    """Rows of streamrec over Google's API."""
    cases = [Case(side="streamrec", limit=limit) for limit in LIMITS]
    return measured(fake_gcs(), shape, cases, runner)


def measured(serving: Running, shape: Shape, cases: Sequence[Case], runner: Runner) -> list[Row]:
    """The rows of these cases over one server."""
    with ExitStack() as stack:
        with stores.last_core():
            store = stack.enter_context(serving)
            front = stack.enter_context(counted(store))
        buckets: dict[str, Bucket] = {}
        for side in dict.fromkeys(case.side for case in cases):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            kind = FORMATS[side]
            in_own_process(
                WRITERS[kind],
                python=runner.python(side),
                folder=folder,
                shards=shape.shards,
                images=shape.images,
            )
            paths = sorted(Path(folder).iterdir())
            for path in paths:
                store.put({f"{store.url}/{kind}/{path.name}": path.read_bytes()})
            shards = [path for path in paths if path.suffix == f".{kind}"]
            buckets[side] = Bucket(
                store=front,
                folder=kind,
                names=[path.name for path in shards],
                nbytes=sum(path.stat().st_size for path in shards),
                shape=shape,
            )
        return [runner.row(case, buckets[case.side]) for case in cases]


def names_of(sides: Sequence[str]) -> list[str]:
    """The distributions whose versions the rows of these sides depend on."""
    return list(dict.fromkeys(name for side in sides for name in DISTRIBUTIONS[side]))


if __name__ == "__main__":
    run(main)
