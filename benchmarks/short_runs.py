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

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import streamrec
from benchmarks import readers, stores
from benchmarks.harness.meter import Meter
from benchmarks.harness.process import in_own_process
from benchmarks.harness.program import run
from benchmarks.harness.results import RESULTS, load, others, save

SHARDS = 16
SIZE = 16_000_000
BATCH = 32
CALM = stores.FAR
RESETTING = replace(CALM, reset=0.2, unavailable=0.1)
STALLING = replace(RESETTING, stall=0.05)
NETWORKS = {"calm": CALM, "wet": RESETTING, "stalling": STALLING}


def main(*, seeds: int = 10, note: str = "now") -> None:
    """Runs all seeds."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(seeds):
            rows.append({"note": note, "seed": seed, **one_seed(Path(directory), seed)})
            print(rows[-1], flush=True)
    fine = sum(row["seconds_more"] <= 5 for row in rows)
    print(f"within 5 s of the calm run: {fine} of {len(rows)}")
    saved = load("short_runs")["rows"] if (RESULTS / "short_runs.json").exists() else []
    save("short_runs", ["s3fs", "aiohttp"], rows=others(saved, rows, ["note"]) + rows)


def one_seed(root: Path, seed: int) -> dict[str, Any]:
    """The three runs of a seed."""
    runs = {}
    for name, network in NETWORKS.items():
        faults = replace(network, seed=seed)
        with stores.simulated(root, "short", shards=SHARDS, size=SIZE, faults=faults) as where:
            runs[name] = in_own_process(read, urls=where[0], options=where[1])
    assert len({found["check"] for found in runs.values()}) == 1, "the runs read other bytes"
    calm, wet, stalling = (runs[name] for name in NETWORKS)
    return {
        "seconds": {name: round(found["seconds"], 2) for name, found in runs.items()},
        "requests": {name: found["requests"] for name, found in runs.items()},
        "seconds_more": round(stalling["seconds"] - calm["seconds"], 2),
        "requests_ratio": round(stalling["requests"] / wet["requests"], 2),
        **{key: stalling[key] for key in ("stalls", "hedges", "hedges_won", "timed_out")},
    }


def read(urls: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """One run, in the default settings."""
    dataset = streamrec.TFRecordDataset(urls, num_parallel_reads=SHARDS, storage_options=options)
    with Meter() as meter, dataset.batch(BATCH).iterate() as batches:
        check = sum(readers.checksum_of(frames) for frames in batches)
        counts = batches.stats().storage.backends["s3"]
    found = {"seconds": meter.seconds, "check": check, "requests": counts.requests}
    found |= {key: getattr(counts, key) for key in ("stalls", "hedges", "hedges_won")}
    return {**found, "timed_out": counts.retries["timed_out"]}


if __name__ == "__main__":
    run(main)
