"""A whole input pipeline beside tf.data at its best, and beside a DataLoader with two workers: same
files, same cores.

    python -m benchmarks.pipeline [--rounds 3] [--only four,forty,images,tokens,padded]
        [--without-shuffle]
    python -m benchmarks.pipeline --memory

Sixteen local shards in the page cache, interleaved, shuffled, batched, parsed (`benchmarks.shards`
has the records, `benchmarks.contenders` how each one writes it). Each run is a process of its own
on two cores, which imports, and makes one pass, before the clock starts (the DataLoader only
imports: its workers start again with each pass). Then passes follow, each with an iterator and a
shuffle buffer of its own, for 1.5 seconds at least. The consumer takes each batch and does nothing
with it.

First each way of writing it is tried, and counts and checksums are compared; then the fastest way
of each side takes turns with the others, `--rounds` times. A side's `ratio` is streamrec's speed,
divided by its own. The DataLoader reads two of the shards where all of them would take minutes.

Peak memory is the process's (VmHWM), and twice that of the larger worker, as `top` would show it;
beside it what the imports took.

`--memory`: streamrec's alone, in each row and each way, with a consumer that stops for a minute
after 500 batches.
"""

from __future__ import annotations

import os
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import SIDES, Pass, ways
from benchmarks.harness.meter import Figures, Meter, peak_mb, peak_of_children_mb, pin
from benchmarks.harness.process import in_own_process
from benchmarks.harness.program import Names, run
from benchmarks.harness.results import save, with_saved
from benchmarks.harness.rounds import in_turn
from benchmarks.shards import KINDS, SHARDS, write

CORES = (0, 1)
MIN_SECONDS = 1.5
STOPS_SECONDS = 60
BATCHES = 500
SLACK_MB = 150
WORKERS = 2
FIGURES = ("records_s", "mb_s", "cpu_s_gb", "peak_mb", "before_mb")


def main(
    *,
    rounds: int = 3,
    only: Names = ("four", "forty", "images", "tokens"),
    sides: Names = ("streamrec", "tf.data"),
    without_shuffle: bool = False,
    memory: bool = False,
) -> None:
    """A row for each kind of records."""
    rows: list[dict[str, Any]] = []
    for name in only:
        with tempfile.TemporaryDirectory() as folder:
            paths = write(KINDS[name], Path(folder))
            task = {"name": name, "paths": paths, "shuffled": not without_shuffle}
            if memory:
                rows += memory_rows(task)
            else:
                rows.append(row(task, sides, rounds))
                show(rows[-1])
    if memory:
        rows = with_saved("pipeline_memory", rows, "row", "shuffle", "way")
        save("pipeline_memory", ["numpy"], stops_seconds=STOPS_SECONDS, rows=rows)
    else:
        packages = ["tensorflow-cpu", "torch", "tfrecord", "numpy"]
        rows = with_saved("pipeline", rows, "row", "shuffle")
        save("pipeline", packages, rounds=rounds, rows=rows)


def row(task: Mapping[str, Any], sides: Sequence[str], rounds: int) -> dict[str, Any]:
    """One row: every way of each side, then the best ways in turn."""
    kind, paths = KINDS[task["name"]], task["paths"]
    tasks = {
        side: {
            **task,
            "side": side,
            "paths": paths[: kind.loader_shards] if side == "DataLoader" else paths,
        }
        for side in sides
    }
    tried = {side: tried_ways(tasks[side]) for side in sides}
    best = {side: max(found, key=found.__getitem__) for side, found in tried.items()}
    runs = {side: partial(in_own_process, one_way, way=best[side], **tasks[side]) for side in sides}
    taken = in_turn(runs, rounds)
    made: dict[str, Any] = {"row": kind.key, "shuffle": kind.shuffle if task["shuffled"] else 0}
    made |= {"bar": kind.bar, **taken.calm, "load": round(os.getloadavg()[0], 1)}
    made["tried_records_s"] = tried
    for side in sides:
        made[side] = {"way": best[side], **taken.medians(side, *FIGURES)}
        if "streamrec" in sides:
            made[side]["ratio"] = taken.ratio("mb_s", "streamrec", side)
            made[side]["cpu_ratio"] = taken.ratio("cpu_s_gb", side, "streamrec")
    return made


def tried_ways(task: Mapping[str, Any]) -> dict[str, float]:
    """Records/s of each way of one side, which must read the records that streamrec reads."""
    theirs = in_own_process(content, **task)
    ours = in_own_process(content, **{**task, "side": "streamrec"})
    if theirs != ours:
        raise SystemExit(f"{task['side']} reads other data: {theirs}, not {ours}")
    speeds: dict[str, float] = in_own_process(each_way, **task)
    return speeds


def show(made: dict[str, Any]) -> None:
    """A few lines of the table."""
    named = "{row} (shuffle {shuffle:,}; bar x{bar}; load {load})"
    print(named.format(**made))
    for side in SIDES:
        if side in made:
            ratios = ", ".join(
                f"{name} x{value}" for name, value in made[side].items() if "ratio" in name
            )
            line = (
                "  {side:<10} {records_s:>12,.0f} records/s {mb_s:>7.0f} MB/s {cpu_s_gb:>7.2f} "
                "CPU-s/GB, peak {peak_mb:>5.0f} MB of which {before_mb:>4.0f} for imports; "
                "{ratios}  {way}"
            )
            print(line.format(side=side, ratios=ratios, **made[side]), flush=True)


def memory_rows(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Peak memory beside a consumer that stops: all ways of streamrec at once, since they sleep
    for most of the time.
    """
    kind = KINDS[task["name"]]
    tried = list(ways("streamrec", kind, task["paths"], task["shuffled"]))
    with ThreadPoolExecutor(len(tried)) as threads:
        runs = list(threads.map(lambda way: in_own_process(stopped, way=way, **task), tried))
    rows = []
    for way, found in zip(tried, runs, strict=True):
        row = {"row": kind.key, "shuffle": task["shuffled"] * kind.shuffle, "side": "streamrec"}
        budget = kind.budget / 1e6
        within = found["peak_mb"] < budget + SLACK_MB
        rows.append({**row, "way": way, **found, "budget_mb": budget, "within": within})
        print(rows[-1], flush=True)
    return rows


def passes_of(side: str, name: str, paths: list[str], shuffled: bool) -> dict[str, Pass]:
    """The ways of one side, on two cores."""
    pin(CORES)
    return ways(side, KINDS[name], paths, shuffled)


def content(side: str, **task: Any) -> dict[str, Any]:
    """What the first way of one side reads."""
    start = next(iter(passes_of(side, **task).values()))
    return checked(start())


def each_way(side: str, **task: Any) -> dict[str, float]:
    """Records/s of each way of one side."""
    passes = passes_of(side, **task)
    return {way: round(measured(start, side, **task)["records_s"]) for way, start in passes.items()}


def one_way(side: str, way: str, **task: Any) -> Figures:
    """One side in one way."""
    return measured(passes_of(side, **task)[way], side, **task)


def measured(start: Pass, side: str, name: str, paths: Sequence[str], shuffled: bool) -> Figures:
    """Passes until the time is up; but for workers, which start again with each pass, after one
    pass that is not counted.
    """
    workers = WORKERS if side == "DataLoader" else 0
    before = peak_mb()
    if not workers:
        consume(start())
    count = 0
    began = time.perf_counter()
    with Meter() as meter:
        while time.perf_counter() - began < MIN_SECONDS:
            consume(start())
            count += 1
    records = KINDS[name].records * len(paths) // SHARDS
    return {
        "records_s": count * records / meter.seconds,
        **meter.rates(count * sum(map(os.path.getsize, paths))),
        "peak_mb": peak_mb() + workers * peak_of_children_mb(),
        "before_mb": before,
    }


def stopped(way: str, name: str, paths: list[str], shuffled: bool) -> Figures:
    """Peak memory: when a consumer has stopped for a minute, and after it went on."""
    pin(CORES)
    batches = ways("streamrec", KINDS[name], paths, shuffled, endless=True)[way]()
    before = peak_mb()
    consume(islice(batches, BATCHES))
    time.sleep(STOPS_SECONDS)
    waited = peak_mb()
    consume(islice(batches, BATCHES))
    return {"before_mb": before, "peak_stopped_mb": waited, "peak_mb": peak_mb()}


def consume(batches: Iterator[Any]) -> None:
    """The training loop that does nothing."""
    for _ in batches:
        pass


def checked(batches: Iterator[Any]) -> dict[str, Any]:
    """The number of records, and of each column what does not depend on their order."""
    records, sums = 0, dict[str, float]()
    for batch in batches:
        arrays = {
            key: batch[key].numpy() if hasattr(batch[key], "numpy") else batch[key] for key in batch
        }
        records += len(next(iter(arrays.values())))
        for key, column in arrays.items():
            sums[key] = sums.get(key, 0) + sum_of(column)
    return {"records": records, "sums": {key: round(sums[key], 3) for key in sorted(sums)}}


def sum_of(column: Any) -> float:
    """Of numbers their sum, of strings that of their CRCs."""
    if isinstance(column, np.ndarray) and column.dtype != object:
        dtype = np.float64 if column.dtype.kind == "f" else np.int64
        total: float = column.sum(dtype=dtype).item()
        return total
    return sum(map(zlib.crc32, column))


if __name__ == "__main__":
    run(main)
