"""What the cache of streamrec costs: without it, epoch 1 through it, epoch 2, and local files.

Each side reads the same shards in a process of its own, after a few that do not count: the store
once, and the disk five times in one run, because opening the store's client would be most of the
time of once. Local files, and the cache's, are in the page cache.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import stores
from benchmarks.harness.meter import Figures, Meter, pin
from benchmarks.harness.process import in_own_process
from benchmarks.harness.rounds import in_turn
from tests.servers.real import Store

WORKS = {"20 MB shards": (8, 20_000_000), "100 kB objects": (1000, 100_000)}
"""How many objects there are, and their bytes."""

RATIOS = {
    "epoch 1, time": ("s_gb", "epoch 1", "without"),
    "epoch 1, processor time": ("cpu_s_gb", "epoch 1", "without"),
    "epoch 2, time": ("s_gb", "epoch 2", "local files"),
    "epoch 2, processor time": ("cpu_s_gb", "epoch 2", "local files"),
}
PASSES = {"epoch 2": 5, "local files": 5}
SIDES = ("without", "epoch 1", "epoch 2", "local files")
WARM = 8
RECORD = 99_000
LIMIT = 2 << 30
BUDGET = 256 << 20

Row = dict[str, Any]


def compared(store: Store, rounds: int, works: Sequence[str]) -> list[Row]:
    """A row for each kind of objects."""
    rows = []
    for work in works:
        with tempfile.TemporaryDirectory() as folder:
            rows.append({"work": work, **compared_work(store, rounds, work, Path(folder))})
        print(rows[-1], flush=True)
    return rows


def compared_work(store: Store, rounds: int, work: str, folder: Path) -> Row:
    """The medians of the sides, and the ratios within a round with their spreads."""
    count, size = WORKS[work]
    local = folder / "local"
    fill(local, count, size)
    remote = f"{store.url}/{work.replace(' ', '-')}"
    store.put({f"{remote}/{path.name}": path.read_bytes() for path in local.iterdir()})
    full = folder / "full"
    task: dict[str, Any] = {"remote": remote, "local": str(local), "options": dict(store.options)}
    in_own_process(measured, side="epoch 1", cache=str(full), **task)

    def side(name: str) -> Figures:
        cache = full if name == "epoch 2" else folder / "new"
        try:
            figures: Figures = in_own_process(measured, side=name, cache=str(cache), **task)
        finally:
            shutil.rmtree(folder / "new", ignore_errors=True)
        return figures

    taken = in_turn({name: partial(side, name) for name in SIDES}, rounds)
    row: Row = {name: taken.medians(name, "mb_s", "cpu_s_gb") for name in SIDES}
    for name, (figure, ours, theirs) in RATIOS.items():
        row[name] = taken.ratio(figure, ours, theirs)
        row[f"{name}, spread"] = taken.spread(figure, ours, theirs)
    return {**row, **taken.calm}


def fill(folder: Path, count: int, size: int) -> None:
    """Writes shards, and a few more that do not count."""
    folder.mkdir()
    record = min(RECORD, size - 16)
    asyncio.run(stores.fill(str(folder), None, shards=1, size=size, record=record))
    first = folder / "000.tfrecord"
    data = first.read_bytes()
    first.unlink()
    for number in range(count + WARM):
        # the same bytes: nothing compresses or shares them
        (folder / f"{number:05d}.tfrecord").write_bytes(data)


def measured(side: str, remote: str, local: str, options: dict[str, Any], cache: str) -> Figures:
    """One side, in a process of its own."""
    import streamrec

    pin()
    names = sorted(path.name for path in Path(local).iterdir())
    place = local if side == "local files" else remote
    given: dict[str, Any] | None = None if side == "local files" else dict(options)
    if given is not None and side != "without":
        given |= {"cache_dir": cache, "cache_bytes": LIMIT}

    def read(some: Sequence[str], passes: int) -> int:
        urls = [f"{place}/{name}" for name in some]
        dataset = streamrec.TFRecordDataset(urls, num_parallel_reads=16, storage_options=given)
        batches = dataset.repeat(passes).with_options(memory_budget=BUDGET).batch(32)
        return sum(frames.nbytes for frames in batches)

    read(names[-WARM:], 1)
    with Meter() as meter:
        size = read(names[:-WARM], PASSES.get(side, 1))
    return {**meter.rates(size), "s_gb": meter.seconds / size * 1e9}
