"""What a small object costs an async service: `open_shard` for each request, beside s3fs with one
client.

    python -m benchmarks.clients

A SeaweedFS on this machine holds small shards. One after the other, and 1,000 at once, they are
read by `streamrec.open_shard` with the same options each time, and by `_cat_file` of one
S3FileSystem; in turn, five rounds. What counts is this process's processor time a request. Results
go to benchmarks/results/clients.json.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import s3fs

import streamrec
from benchmarks.machine import describe, save
from tests.servers.real import seaweedfs

ROUNDS = 5
ONE_BY_ONE, AT_ONCE = 300, 1000


async def cost(call: Callable[[], Awaitable[Any]], count: int, together: bool) -> float:
    """Milliseconds of the processor for one of so many calls."""
    began = time.process_time()
    if together:
        await asyncio.gather(*(call() for _ in range(count)))
    else:
        for _ in range(count):
            await call()
    return (time.process_time() - began) / count * 1e3


async def main() -> None:
    """Both, in turn."""
    with seaweedfs() as store:
        url, options = f"{store.url}/small.tfrecord", dict(store.options)
        async with streamrec.ShardWriter(url, storage_options=options) as writer:
            await writer.write(bytes(10_000))
        fs = s3fs.S3FileSystem(**options, asynchronous=True, skip_instance_cache=True)
        await fs.set_session()

        async def ours() -> None:
            async with streamrec.open_shard(url, storage_options=options) as shard:
                assert await shard.read() is not None

        async def theirs() -> None:
            await fs._cat_file(url)

        rows = []
        for together, count in ((False, ONE_BY_ONE), (True, AT_ONCE)):
            found: dict[str, list[float]] = {"open_shard": [], "_cat_file": []}
            await ours()
            await theirs()
            for _ in range(ROUNDS):
                found["open_shard"].append(await cost(ours, count, together))
                found["_cat_file"].append(await cost(theirs, count, together))
            row: dict[str, Any] = {"requests": count, "at once": together}
            row |= {name: round(statistics.median(values), 2) for name, values in found.items()}
            row["ratio"] = round(
                statistics.median(a / b for a, b in zip(*found.values(), strict=True)), 2
            )
            rows.append(row)
            print(json.dumps(row))
        await fs._s3creator.__aexit__(None, None, None)
    save(
        "clients",
        {"machine": describe("s3fs", "aiobotocore"), "unit": "CPU ms a request", "rows": rows},
    )


if __name__ == "__main__":
    asyncio.run(main())
