"""A whole input pipeline beside tf.data at its best, and beside a DataLoader with two workers: same
files, same cores.

    python -m benchmarks.pipeline [--rounds 3] [--only four,forty,images,tokens,padded]
        [--without-shuffle]
    python -m benchmarks.pipeline --memory

Sixteen local shards in the page cache, interleaved, shuffled, batched, parsed (`benchmarks.shards`
has the records, `benchmarks.contenders` how each one writes it). Each run is a process of its own
on two cores, which imports, and makes one pass, before the clock starts (the DataLoader only
imports: its workers start anew with each pass). Then passes follow, each with an iterator and a
shuffle buffer of its own, for 1.5 seconds at least. The consumer takes each batch and does nothing
with it.

First each way of writing it is tried (twice; the DataLoader once), and counts and checksums are
compared; then the fastest way of each side takes turns with the others, `--rounds` times; the
calmest rounds count (`benchmarks.calm`). Ratios are of neighbours in time; medians count. A side's
`ratio` is streamrec's speed beside it, The DataLoader reads two of the shards where all of them
would take minutes.

Peak memory is the process's (VmHWM), and twice that of the larger worker, as `top` would show it;
beside it what the imports took.

`--memory`: streamrec's alone, in each row and each way, with a consumer that stops for a minute
after 500 batches.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calm import calmest
from benchmarks.contenders import SIDES, Pass, ways
from benchmarks.machine import describe, median, merge, save
from benchmarks.shards import KINDS, SHARDS, write
from benchmarks.stream import peak_mb, spawn

MODULE = "benchmarks.pipeline"
CHECK = "check"
CORES = {0, 1}
MIN_SECONDS = 1.5
STOPS_SECONDS = 60
BATCHES = 500
TRIES = 1
SLACK_MB = 150
WORKERS = 2
FIGURES = ("records_s", "mb_s", "cpu_s_gb", "peak_mb", "before_mb")


def main() -> None:
    """Runs the rows, or one run as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="four,forty,images,tokens")
    parser.add_argument("--sides", default="streamrec,tf.data")
    parser.add_argument("--without-shuffle", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(**json.loads(arguments.child))))
        return
    if arguments.memory:
        memory(arguments.only.split(","), not arguments.without_shuffle)
        return
    rows = []
    for name in arguments.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            paths = write(KINDS[name], Path(folder))
            rows.append(
                row(
                    name,
                    paths,
                    not arguments.without_shuffle,
                    arguments.sides.split(","),
                    arguments.rounds,
                )
            )
        show(rows[-1])
    machine = describe("tensorflow-cpu", "torch", "tfrecord", "numpy")
    save(
        "pipeline",
        {
            "machine": machine,
            "rounds": arguments.rounds,
            "rows": merge("pipeline", rows, "row", "shuffle"),
        },
    )


def row(
    name: str, paths: list[str], shuffled: bool, sides: Sequence[str], rounds: int
) -> dict[str, Any]:
    """One row: every way, then the best ways in turn."""
    kind = KINDS[name]
    files = {side: paths[: kind.loader_shards] if side == "DataLoader" else paths for side in sides}
    tasks = {
        side: {"name": name, "side": side, "paths": files[side], "shuffled": shuffled}
        for side in sides
    }
    tried = {side: tried_ways(**tasks[side]) for side in sides}
    best = {side: max(found, key=found.__getitem__) for side, found in tried.items()}
    runs, calm = calmest(
        lambda: {side: spawn(MODULE, way=best[side], **tasks[side]) for side in sides}, rounds
    )
    made: dict[str, Any] = {
        "row": name,
        "shuffle": kind.shuffle if shuffled else 0,
        "bar": kind.bar,
        **calm,
    }
    made["load"] = round(os.getloadavg()[0], 1)
    made["tried_records_s"] = tried
    for side in sides:
        made[side] = {
            "way": best[side],
            **{key: median(run[side][key] for run in runs) for key in FIGURES},
        }
        if "streamrec" in sides:
            made[side]["ratio"] = median(
                run["streamrec"]["mb_s"] / run[side]["mb_s"] for run in runs
            )
            made[side]["cpu_ratio"] = median(
                run[side]["cpu_s_gb"] / run["streamrec"]["cpu_s_gb"] for run in runs
            )
    return made


def tried_ways(**task: Any) -> dict[str, float]:
    """Records/s of each way of one side, whose records are compared with streamrec's."""
    found = spawn(MODULE, way=None, **task)
    check, ours = (
        found.pop("check"),
        spawn(MODULE, way=CHECK, **{**task, "side": "streamrec"})["check"],
    )
    if check != ours:
        raise SystemExit(f"{task['side']} reads other data: {check}, not {ours}")
    return {way: round(run["records_s"]) for way, run in found.items()}


def show(made: dict[str, Any]) -> None:
    """A few lines of the table."""
    print(
        f"{KINDS[made['row']].name} (shuffle {made['shuffle']:,}; bar x{made['bar']}; load "
        f"{made['load']})"
    )
    for side in SIDES:
        if side in made:
            ratios = ", ".join(
                f"{name} x{value}" for name, value in made[side].items() if "ratio" in name
            )
            print(
                "  {side:<10} {records_s:>12,.0f} records/s {mb_s:>7.0f} MB/s {cpu_s_gb:>7.2f} "
                "CPU-s/GB, peak "
                "{peak_mb:>5.0f} MB of which {before_mb:>4.0f} for imports; {ratios}  {way}".format(
                    side=side, ratios=ratios, **made[side]
                ),
                flush=True,
            )


def memory(names: Sequence[str], shuffled: bool) -> None:
    """Peak memory beside a consumer that stops: the ways of one row at once, since they sleep for
    most of the time.
    """
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(8) as threads:
            task = {"name": name, "paths": write(KINDS[name], Path(folder)), "shuffled": shuffled}
            kind = KINDS[name]
            tried = [("streamrec", way) for way in ways("streamrec", kind, task["paths"], shuffled)]
            runs = threads.map(
                lambda one, task=task: spawn(
                    MODULE, side=one[0], way=one[1], stops=STOPS_SECONDS, **task
                ),
                tried,
            )
            for (side, way), run in zip(tried, runs, strict=True):
                rows.append(
                    {
                        "row": name,
                        "shuffle": shuffled * kind.shuffle,
                        "side": side,
                        "way": way,
                        **run,
                    }
                )
                rows[-1] |= {
                    "budget_mb": kind.budget / 1e6,
                    "within": run["peak_mb"] < kind.budget / 1e6 + SLACK_MB,
                }
                print(rows[-1], flush=True)
    rows = merge("pipeline_memory", rows, "row", "shuffle", "way")
    save(
        "pipeline_memory",
        {"machine": describe("numpy"), "stops_seconds": STOPS_SECONDS, "rows": rows},
    )


def child(
    name: str, side: str, way: str | None, paths: list[str], shuffled: bool, stops: float = 0
) -> dict[str, Any]:
    """One side in one way, measured; or, for no way, the records/s of each, and what the side
    reads.
    """
    os.sched_setaffinity(0, CORES)
    kind = KINDS[name]
    passes = ways(side, kind, paths, shuffled, endless=stops > 0)
    if way is not None and stops:
        return stopped(passes[way](), stops)
    records, workers = kind.records * len(paths) // SHARDS, WORKERS if side == "DataLoader" else 0
    if way is not None and way != CHECK:
        return measured(passes[way], records, paths, workers)
    found: dict[str, Any] = {"check": checked(next(iter(passes.values()))())}
    if way != CHECK:
        measures = {
            way: partial(measured, start, records, paths, workers) for way, start in passes.items()
        }
        tries, speed = range(1 if workers else TRIES), itemgetter("records_s")
        found |= {
            way: max((measure() for _ in tries), key=speed) for way, measure in measures.items()
        }
    return found


def measured(start: Pass, records: int, paths: Sequence[str], workers: int) -> dict[str, float]:
    """Passes until the time is up; but for workers, which start anew in each, after one that is not
    counted.
    """
    before = peak_mb()
    if not workers:
        consume(start())
    began, used, count = time.perf_counter(), cpu_seconds(), 0
    while time.perf_counter() - began < MIN_SECONDS:
        consume(start())
        count += 1
    seconds, used = time.perf_counter() - began, cpu_seconds() - used
    size = count * sum(map(os.path.getsize, paths))
    return {
        "records_s": count * records / seconds,
        "mb_s": size / seconds / 1e6,
        "cpu_s_gb": used / size * 1e9,
        "peak_mb": peak_mb()
        + workers * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6,
        "before_mb": before,
    }


def stopped(batches: Iterator[Any], seconds: float) -> dict[str, float]:
    """Peak memory: when a consumer has stopped for so long, and after it went on."""
    before = peak_mb()
    for _ in islice(batches, BATCHES):
        pass
    time.sleep(seconds)
    waited = peak_mb()
    for _ in islice(batches, BATCHES):
        pass
    return {"before_mb": before, "peak_stopped_mb": waited, "peak_mb": peak_mb()}


def cpu_seconds() -> float:
    """Of this process, and of its workers that have ended."""
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + workers.ru_utime + workers.ru_stime


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
        return column.sum(dtype=np.float64 if column.dtype.kind == "f" else np.int64).item()
    return sum(map(zlib.crc32, column))


if __name__ == "__main__":
    main()
