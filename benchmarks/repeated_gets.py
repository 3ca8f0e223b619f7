"""What it is worth to repeat the client's GET (`repeated_gets.py`), in processor time: with and
without it, in turn.

    python -m benchmarks.repeated_gets

Objects of several sizes lie in a SeaweedFS on this machine and are read one after the other, each
by one ranged GET, as small shards and ranges of large ones are. What counts is this process's
processor time for each GB and each request; the server's is not in it. The medians of five rounds;
results go to benchmarks/results/repeated_gets.json.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from benchmarks import stores
from benchmarks.harness.meter import Figures, Meter
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn
from streamrec.storage import Storages
from tests.servers.real import seaweedfs

SIZES = {100_000: 400, 1 << 20: 200, 5 << 20: 60}
OBJECTS = 8


def main(*, rounds: int = 5) -> None:
    """A row for each size of objects."""
    with ExitStack() as stack:
        with stores.last_core():
            store = stack.enter_context(seaweedfs())
        # the rounds go on in one event loop, because the client belongs to it
        runner = stack.enter_context(asyncio.Runner())
        rows = [row_of(runner, store.url, store.options, size, rounds) for size in SIZES]
    save("repeated_gets", ["s3fs", "aiobotocore", "botocore"], rounds=rounds, rows=rows)


def row_of(
    runner: asyncio.Runner, url: str, options: Any, size: int, rounds: int
) -> dict[str, Any]:
    """Both ways in turn, with one client."""
    stack = AsyncExitStack()
    storages = runner.run(stack.enter_async_context(Storages(options)))
    storage = runner.run(filled(storages, url, size))
    fast_path = storage._backend._repeated_gets.fast_path

    def side(repeated: bool) -> Figures:
        fast_path.is_open = lambda bucket: repeated
        return runner.run(read_all(storage, url, size))

    taken = in_turn({"repeated": lambda: side(True), "client": lambda: side(False)}, rounds)
    runner.run(stack.aclose())
    row = {"bytes": size, **{name: taken.medians(name) for name in ("repeated", "client")}}
    print(row, flush=True)
    return {**row, **taken.calm}


async def filled(storages: Storages, url: str, size: int) -> Any:
    """The storage of a URL, with objects of this size."""
    storage = await storages.at(url)
    for number in range(OBJECTS):
        async with await storage.upload(f"{url}/{size}-{number}") as upload:
            await upload.write(bytes(size))
    return storage


async def read_all(storage: Any, url: str, size: int) -> Figures:
    """So many GETs, one after the other."""
    buffer = memoryview(bytearray(size))
    count = SIZES[size]
    with Meter() as meter:
        for number in range(count):
            stream = await storage.stream(f"{url}/{size}-{number % OBJECTS}")
            received = 0
            while received < size:
                received += await stream.readinto(buffer[received:])
            await stream.aclose()
    rates = meter.rates(size * count)
    return {
        "MB/s": rates["mb_s"],
        "CPU-s/GB": rates["cpu_s_gb"],
        "CPU ms a request": meter.each(count)["cpu_us"] / 1e3,
    }


if __name__ == "__main__":
    run(main)
