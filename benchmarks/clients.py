"""What a small object costs an async service: `open_shard` for each request, beside s3fs with one
client.

    python -m benchmarks.clients

A SeaweedFS on this machine holds small shards. One after the other, and 1,000 at once, they are
read by `streamrec.open_shard` with the same options each time, and by `_cat_file` of one
S3FileSystem, in turn. What counts is this process's processor time a request. Results
go to benchmarks/results/clients.json.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import s3fs

import streamrec
from benchmarks import stores
from benchmarks.harness.meter import Figures, Meter
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn
from tests.servers.real import seaweedfs

ONE_BY_ONE, AT_ONCE = 300, 1000

Call = Callable[[], Awaitable[Any]]


def main(*, rounds: int = 5) -> None:
    """Both, in turn."""
    with ExitStack() as stack:
        with stores.last_core():
            store = stack.enter_context(seaweedfs())
        url, options = f"{store.url}/small.tfrecord", dict(store.options)
        with streamrec.TFRecordWriter(url, storage_options=options) as writer:
            writer.write(bytes(10_000))
        # one event loop for all rounds: the client of s3fs belongs to it
        with asyncio.Runner() as runner:
            rows = rows_of(runner, url, options, rounds)
    save("clients", ["s3fs", "aiobotocore"], rounds=rounds, unit="CPU ms a request", rows=rows)


def rows_of(
    runner: asyncio.Runner, url: str, options: dict[str, Any], rounds: int
) -> list[dict[str, Any]]:
    """A row for requests one after the other, and one for requests at once."""
    fs = s3fs.S3FileSystem(**options, asynchronous=True, skip_instance_cache=True)
    runner.run(fs.set_session())

    async def ours() -> None:
        async with streamrec.open_shard(url, storage_options=options) as shard:
            assert await shard.read() is not None

    async def theirs() -> None:
        await fs._cat_file(url)

    def side(call: Call, count: int, together: bool) -> Figures:
        return runner.run(cost(call, count, together))

    rows = []
    for together, count in ((False, ONE_BY_ONE), (True, AT_ONCE)):
        sides = {
            "open_shard": partial(side, ours, count, together),
            "_cat_file": partial(side, theirs, count, together),
        }
        taken = in_turn(sides, rounds, warm=1)
        row: dict[str, Any] = {"requests": count, "at once": together, **taken.by_side("cpu_ms")}
        row["ratio"] = taken.ratio("cpu_ms", "open_shard", "_cat_file")
        rows.append({**row, **taken.calm})
        print(rows[-1], flush=True)
    runner.run(closed(fs))
    return rows


async def cost(call: Call, count: int, together: bool) -> Figures:
    """Milliseconds of the processor for one of so many calls."""
    with Meter() as meter:
        if together:
            await asyncio.gather(*(call() for _ in range(count)))
        else:
            for _ in range(count):
                await call()
    return {"cpu_ms": meter.each(count)["cpu_us"] / 1e3}


async def closed(fs: s3fs.S3FileSystem) -> None:
    """Closes the client's connections."""
    await fs._s3creator.__aexit__(None, None, None)


if __name__ == "__main__":
    run(main)
