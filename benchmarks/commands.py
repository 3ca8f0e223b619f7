"""The command line on a large data set: peak memory of each command, and `verify` beside streaming
alone.

    python -m benchmarks.commands

The data set is one shard of 200 MB under many names (hard links), so that the disk holds little.
Peak memory is the largest resident set of the command's process; it includes pages of mapped files.
`verify` and a loop over `TFRecordDataset` take turns; besides their seconds, the processor seconds
are compared, which other work on the machine changes little.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import streamrec
from benchmarks.harness.meter import Figures
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn
from tests.servers.real import seaweedfs

RECORDS = 1800
IMAGE_BYTES = 110_000
LINKS = {"info": 50, "verify": 50, "stat": 50, "reshard": 50}
STREAM = (
    "import json, sys, streamrec\n"
    "dataset = streamrec.TFRecordDataset(sys.argv[1], num_parallel_reads=8, "
    "storage_options=json.loads(sys.argv[2]))\n"
    "for _ in dataset.batch(64): pass\n"
)


def main(*, rounds: int = 5) -> None:
    """Measures all, and saves it."""
    with tempfile.TemporaryDirectory(prefix="streamrec-commands-") as name:
        shard = write_shard(Path(name))
        memory = [peak(command, links, shard) for command, links in LINKS.items()]
        speed = [compared("local file", linked(shard, 15), {}, rounds)]
        with filled_store(shard) as (url, options):
            speed.append(compared("SeaweedFS", url, options, rounds))
    save("commands", ["numpy", "s3fs"], rounds=rounds, memory=memory, verify=speed)


def write_shard(directory: Path) -> Path:
    """About 200 MB of Examples with an image, a label and a score."""
    rng = np.random.default_rng(0)
    path = directory / "shard"
    with path.open("wb") as file:
        for number in range(RECORDS):
            row = {
                "image": rng.bytes(IMAGE_BYTES),
                "label": number % 1000,
                "score": number / RECORDS,
            }
            file.write(streamrec.encode_records([streamrec.encode_example(row)]))
    return path


def linked(shard: Path, links: int) -> str:
    """A directory in which the shard has so many names."""
    directory = shard.parent / f"of-{links}"
    directory.mkdir(exist_ok=True)
    for number in range(links):
        if not (link := directory / f"train-{number:05d}.tfrecord").exists():
            os.link(shard, link)
    return str(directory)


def peak(command: str, links: int, shard: Path) -> dict[str, Any]:
    """Runs a command to its end, and looks at the memory that it took."""
    source = linked(shard, links)
    with tempfile.TemporaryDirectory(dir=shard.parent) as output:
        target = [f"{output}/"] if command == "reshard" else []
        began = time.perf_counter()
        usage = finished([sys.executable, "-m", "streamrec", command, source, *target])
        seconds = time.perf_counter() - began
    nbytes, peak_mb = links * shard.stat().st_size, round(usage.ru_maxrss * 1024 / 1e6)
    row = {
        "command": command,
        "gb": round(nbytes / 1e9, 2),
        "seconds": round(seconds, 1),
        "peak_mb": peak_mb,
    }
    print(row, flush=True)
    return row


def finished(command: list[str]) -> resource.struct_rusage:
    """Runs a process; returns what it took of the machine."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage


def compared(store: str, url: str, options: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """`verify` and streaming alone in turn: above 1, `verify` takes less time."""
    words = [
        f"-o{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in options.items()
    ]
    verify = [sys.executable, "-m", "streamrec", "verify", *words, f"{url}/"]
    stream = [sys.executable, "-c", STREAM, f"{url}/*", json.dumps(options)]
    taken = in_turn({"verify": partial(timed, verify), "stream": partial(timed, stream)}, rounds)
    row: dict[str, Any] = {"store": store, "ratio": taken.ratio("seconds", "stream", "verify")}
    row["cpu_ratio"] = taken.ratio("cpu_seconds", "stream", "verify")
    row |= {side: taken.medians(side) for side in ("verify", "stream")}
    print(row, flush=True)
    return {**row, **taken.calm}


def timed(command: list[str]) -> Figures:
    """How many seconds a process takes, and how many of the processor."""
    began = time.perf_counter()
    usage = finished(command)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime}


@contextmanager
def filled_store(shard: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A SeaweedFS with five shards."""
    import s3fs

    with seaweedfs() as store:
        for number in range(5):
            s3fs.S3FileSystem(**store.options).put_file(
                str(shard), f"streamrec/train-{number:05d}.tfrecord"
            )
        yield store.url, store.options


if __name__ == "__main__":
    run(main)
