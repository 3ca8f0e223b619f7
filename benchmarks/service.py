"""The event loop of `examples/service` under load: 50 streams, slow readers, clients that leave,
random records.

    python -m benchmarks.service [--seconds 10] [--priority 0]

The service, a SeaweedFS and the client of `examples.service.load` are processes of their own on one
machine. Each row is one kind of body. The service measures its own event loop: "delay" is how late
it wakes a task, on the wall's clock; "round" is the processor time of one round of the loop, which
is the delay where nothing else runs on the machine. "bare_delay" is the delay of a process that
does nothing but measure, in the same seconds: what the machine itself adds.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import streamrec
from benchmarks.harness.meter import Figures
from benchmarks.harness.process import in_own_process
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from examples.service.app import Settings
from examples.service.process import Running, serving
from tests.servers.real import seaweedfs

KINDS = {
    "TFRecord": ["application/x-tfrecord"],
    "NDJSON": ["application/x-ndjson"],
    "both": ["application/x-tfrecord", "application/x-ndjson"],
}
STREAMS = 50
IMAGES = 500
ROWS = 60_000
SHARD_BYTES = 4 << 20


def main(*, seconds: float = 10.0, priority: int = 0) -> None:
    """Runs all rows; a priority below 0 is that of root."""
    with seaweedfs() as store, tempfile.TemporaryDirectory() as folder:
        settings = Settings(f"{store.url}/served", store.options)
        asyncio.run(write(settings))
        rows = []
        with serving(settings, Path(folder) / "log") as running:
            os.setpriority(os.PRIO_PROCESS, running.process.pid, priority)
            loaded(running, 3.0, KINDS["both"])  # clients are made, modules loaded
            for kind, accept in KINDS.items():
                rows.append({"bodies": kind, **loaded(running, seconds, accept)})
                print(rows[-1], flush=True)
    packages = ["starlette", "uvicorn", "s3fs", "aiohttp"]
    save("service", packages, streams=STREAMS, priority=priority, rows=rows)


async def write(settings: Settings) -> None:
    """Shards of 64 kB images, and shards of small Examples."""
    random = np.random.default_rng(0)
    pattern, options = f"{settings.url}/{{shard:03d}}.tfrecord", settings.storage_options
    async with streamrec.ShardWriter(
        pattern, max_shard_bytes=SHARD_BYTES, storage_options=options
    ) as writer:
        for number in range(IMAGES):
            await writer.write(
                streamrec.encode_example({"id": number, "image": random.bytes(64_000)})
            )
        columns = {
            "id": np.arange(ROWS),
            "score": random.random(ROWS, np.float32),
            "name": [b"a name"] * ROWS,
        }
        await writer.write_batch(streamrec.encode_examples(columns))


def loaded(running: Running, seconds: float, accept: list[str]) -> dict[str, Any]:
    """One row."""
    load = [sys.executable, "-m", "examples.service.load", running.url, "--streams", str(STREAMS)]
    load += ["--seconds", str(seconds), "--accept", *accept]
    began = processor_seconds(running)
    with ThreadPoolExecutor(1) as thread:
        alone = thread.submit(in_own_process, bare_delay, seconds=seconds)
        done = subprocess.run(load, capture_output=True, text=True, check=True)
        delay = alone.result()
    used = processor_seconds(running) - began
    return {**json.loads(done.stdout), "bare_delay_ms": delay, "cpu_s": round(used, 2)}


def processor_seconds(running: Running) -> float:
    """Processor time of the service so far."""
    fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bare_delay(seconds: float) -> Figures:
    """The delay of a loop that does nothing else, in milliseconds."""
    return asyncio.run(delays_of_loop(seconds))


async def delays_of_loop(seconds: float) -> Figures:
    """The same, in the loop."""
    loop = asyncio.get_running_loop()
    delays, end = [], loop.time() + seconds
    while (due := loop.time() + 0.005) < end:
        await asyncio.sleep(0.005)
        delays.append(1000 * (loop.time() - due))
    return {f"p{share}": round(float(np.percentile(delays, share)), 2) for share in (50, 99)}


if __name__ == "__main__":
    run(main)
