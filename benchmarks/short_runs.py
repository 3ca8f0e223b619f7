"""Short runs over a bad network: 16 shards of 16 MB, 5 % of bodies stalled, 20 % reset, 10 %
answered 503.

    python -m benchmarks.short_runs [--seeds 10] [--note before]

Each seed is read three times, each time by a process of its own from a simulated store (60 MB/s a
connection, 30 to 50 ms to the first byte): calm, with resets and refusals only, and with stalls
too. What is compared: seconds more than the calm run, requests beside those without stalls, and the
checksums of all records. `--note` keeps the run's rows beside those of other notes, so that two
versions of the code can be compared.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import streamrec
from benchmarks.machine import RESULTS, describe, save
from benchmarks.paced import served
from benchmarks.stream import check_of, spawn
from tests.servers.faults import Faults

MODULE = "benchmarks.short_runs"
SHARDS, SIZE, BATCH = 16, 16_000_000, 32
CALM = Faults(first_byte=0.03, jitter=0.02, rate=60e6)
WET = replace(CALM, reset=0.2, unavailable=0.1)
STALLING = replace(WET, stall=0.05)


def main() -> None:
    """Runs all seeds, or one run as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--note", default="now")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(**json.loads(given.child))))
        return
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(given.seeds):
            rows.append({"note": given.note, "seed": seed, **one_seed(Path(directory), seed)})
            print(json.dumps(rows[-1]), flush=True)
    print(
        f"within 5 s of the calm run: {sum(row['seconds_more'] <= 5 for row in rows)} of "
        f"{len(rows)}"
    )
    path = RESULTS / "short_runs.json"
    earlier = json.loads(path.read_text())["rows"] if path.exists() else []
    kept = [row for row in earlier if row["note"] != given.note]
    save("short_runs", {"machine": describe("s3fs", "aiohttp"), "rows": kept + rows})


def one_seed(root: Path, seed: int) -> dict[str, Any]:
    """The three runs of a seed."""
    runs = {}
    for name, faults in (("calm", CALM), ("wet", WET), ("stalling", STALLING)):
        with served(root, "short", SHARDS, SIZE, replace(faults, seed=seed)) as (url, names):
            runs[name] = spawn(MODULE, url=url, names=names)
    calm, wet, stalling = runs["calm"], runs["wet"], runs["stalling"]
    assert calm["check"] == wet["check"] == stalling["check"], "other bytes"
    return {
        "seconds": {name: round(run["seconds"], 2) for name, run in runs.items()},
        "requests": {name: run["requests"] for name, run in runs.items()},
        "seconds_more": round(stalling["seconds"] - calm["seconds"], 2),
        "requests_ratio": round(stalling["requests"] / wet["requests"], 2),
        **{key: stalling[key] for key in ("stalls", "hedges", "hedges_won", "timed_out")},
    }


def child(url: str, names: list[str]) -> dict[str, Any]:
    """One run, in the default settings."""
    urls, options = [f"s3://{name}" for name in names], {"endpoint_url": url, "anon": True}
    dataset = streamrec.TFRecordDataset(urls, num_parallel_reads=SHARDS, storage_options=options)
    began, check = time.perf_counter(), 0
    with dataset.batch(BATCH).iterate() as batches:
        for frames in batches:
            check += check_of(frames)
        counts = batches.stats().storage.backends["s3"]
    return {
        "seconds": time.perf_counter() - began,
        "check": check,
        "requests": counts.requests,
        "stalls": counts.stalls,
        "hedges": counts.hedges,
        "hedges_won": counts.hedges_won,
        "timed_out": counts.retries["timed_out"],
    }


if __name__ == "__main__":
    main()
