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
import json
import statistics
import time
from typing import Any

from benchmarks.machine import describe, save
from streamrec.storage import Storages
from tests.servers.real import seaweedfs

SIZES = {100_000: 400, 1 << 20: 200, 5 << 20: 60}
ROUNDS = 5


async def read_all(storage: Any, url: str, size: int, count: int) -> tuple[float, float]:
    """Seconds and processor seconds for so many GETs."""
    buffer = memoryview(bytearray(size))
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        stream = await storage.stream(f"{url}/{size}-{number % 8}")
        filled = 0
        while filled < size:
            filled += await stream.readinto(buffer[filled:])
        await stream.aclose()
    return time.perf_counter() - began, time.process_time() - cpu


async def main() -> None:
    """All sizes, both ways in turn."""
    rows = []
    with seaweedfs() as store:
        async with Storages(store.options) as storages:
            storage = await storages.at(store.url)
            gets = storage._backend._repeated_gets  # type: ignore[attr-defined]
            for size, count in SIZES.items():
                for number in range(8):
                    async with await storage.upload(f"{store.url}/{size}-{number}") as upload:
                        await upload.write(bytes(size))
                found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
                for _ in range(ROUNDS):
                    for repeated in (True, False):
                        gets.fast_path.is_open = lambda bucket, repeated=repeated: repeated
                        found[repeated].append(await read_all(storage, store.url, size, count))
                row: dict[str, Any] = {"bytes": size}
                for repeated, name in ((True, "repeated"), (False, "client")):
                    seconds, cpu = (
                        statistics.median(part) for part in zip(*found[repeated], strict=True)
                    )
                    row[name] = {
                        "MB/s": round(size * count / seconds / 1e6),
                        "CPU-s/GB": round(cpu / (size * count) * 1e9, 2),
                        "CPU ms a request": round(cpu / count * 1e3, 2),
                    }
                rows.append(row)
                print(json.dumps(row))
    save("repeated_gets", {"machine": describe("s3fs", "aiobotocore", "botocore"), "rows": rows})


if __name__ == "__main__":
    asyncio.run(main())
