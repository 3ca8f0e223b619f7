"""Sends all kinds of requests to the service at once, and reports the result.

    python -m examples.service.load http://127.0.0.1:8000 [--seconds 10] [--streams 50]

The load test keeps a number of streams open. A fifth of them reads slowly, and a fifth disconnects
midway and starts again. The others read to the end as fast as they can, every second one as
TFRecord. At the same time, eight clients ask for random records. The event loop's delay comes from
the service's own histogram.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["delays", "load", "scraped"]

ACCEPT: Final = ("application/x-tfrecord", "application/x-ndjson")
READERS: Final = 8
SLOW_SECONDS: Final = 0.2
"""A slow client takes 64 KiB, and waits so long."""

Metrics = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def load(
    url: str, seconds: float, streams: int, accept: tuple[str, ...] = ACCEPT
) -> dict[str, Any]:
    """Loads a service for some seconds.

    Args:
        url: The URL of the service.
        seconds: The duration.
        streams: The number of bodies to read at the same time.
        accept: The media types to request, in turn.

    Returns:
        Requests by kind, MB/s that were received, and the event loop's delay in milliseconds.
    """
    done: Counter[str] = Counter()
    timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        url, timeout=timeout, connector=connector, read_bufsize=1 << 16
    ) as client:
        records = json.loads(await text_of(client, "POST", "/index"))["records"]
        shards = json.loads(await text_of(client, "GET", "/shards"))
        before = await scraped(client)
        async with asyncio.TaskGroup() as tasks:
            for number in range(streams):
                read = (slow, leaving, whole, whole, whole)[number % 5]
                again(
                    tasks,
                    seconds,
                    partial(read, client, shards, accept[number // 5 % len(accept)], done),
                )
            for _ in range(READERS):
                again(tasks, seconds, partial(one_record, client, records, done))
        after = await scraped(client)
    return {
        "requests": {kind: count for kind, count in sorted(done.items()) if kind != "bytes"},
        "mb_s": round(done["bytes"] / 1e6 / seconds, 1),
        **{f"loop_{name}_ms": delays(name, before, after) for name in ("delay", "round")},
    }


def again(
    tasks: asyncio.TaskGroup, seconds: float, request: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Repeats a request until the time is over, and cuts off the last one."""

    async def repeat() -> None:
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await request()
        except TimeoutError:
            pass

    tasks.create_task(repeat())


async def whole(
    client: aiohttp.ClientSession, shards: list[str], accept: str, done: Counter[str]
) -> None:
    """Reads a shard to its end."""
    await read(client, shards, accept, done, lambda size: asyncio.sleep(0))
    done["whole streams"] += 1


async def slow(
    client: aiohttp.ClientSession, shards: list[str], accept: str, done: Counter[str]
) -> None:
    """Reads a shard slowly."""
    done["slow streams"] += 1
    await read(client, shards, accept, done, lambda size: asyncio.sleep(SLOW_SECONDS))


async def leaving(
    client: aiohttp.ClientSession, shards: list[str], accept: str, done: Counter[str]
) -> None:
    """Disconnects after a few bytes of a stream."""
    limit = random.randrange(1 << 18)

    async def stop(size: int) -> None:
        if size > limit:
            raise ConnectionAbortedError

    try:
        await read(client, shards, accept, done, stop)
    except ConnectionAbortedError:
        done["left streams"] += 1


async def read(
    client: aiohttp.ClientSession,
    shards: list[str],
    accept: str,
    done: Counter[str],
    took: Callable[[int], Awaitable[None]],
) -> None:
    """Reads a stream, and awaits `took` after each part, with the number of bytes so far."""
    size = 0
    async with client.get(
        f"/shards/{random.choice(shards)}", headers={"accept": accept}
    ) as response:
        response.raise_for_status()
        async for part in response.content.iter_chunked(1 << 16):
            size += len(part)
            done["bytes"] += len(part)
            await took(size)


async def one_record(client: aiohttp.ClientSession, records: int, done: Counter[str]) -> None:
    """Requests one record."""
    await text_of(client, "GET", f"/records/{random.randrange(records)}")
    done["single records"] += 1


async def text_of(client: aiohttp.ClientSession, method: str, path: str) -> str:
    """Returns the text of a successful response."""
    async with client.request(method, path) as response:
        text = await response.text()
        assert response.status == 200, f"{path}: {response.status}: {text}"
        return text


async def scraped(client: aiohttp.ClientSession) -> Metrics:
    """Returns all samples of the service's metrics, by name and labels."""
    families = text_string_to_metric_families(await text_of(client, "GET", "/metrics"))
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


def delays(name: str, before: Metrics, after: Metrics) -> dict[str, float]:
    """Returns the event loop's "delay" or "round" between two scrapes, in ms: the median and the
    99th percentile.
    """
    sample = f"service_event_loop_{name}_seconds_bucket"
    counts = {
        float(dict(labels)["le"]): after[key, labels] - before[key, labels]
        for key, labels in after
        if key == sample
    }
    return {"p50": quantile(counts, 0.5), "p99": quantile(counts, 0.99)}


def quantile(counts: dict[float, float], share: float) -> float:
    """Returns a quantile in milliseconds, computed as Prometheus does: linearly within its
    bucket.
    """
    wanted = share * max(counts.values())
    lower, below = 0.0, 0.0
    for upper, count in sorted(counts.items()):
        if count >= wanted:
            return round(
                1000
                * (lower + (min(upper, 10.0) - lower) * (wanted - below) / max(count - below, 1)),
                2,
            )
        lower, below = upper, count
    raise AssertionError("the last bucket holds all")


def main() -> None:
    """Runs the load test."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--accept", nargs="*", default=ACCEPT)
    given = parser.parse_args()
    print(
        json.dumps(asyncio.run(load(given.url, given.seconds, given.streams, tuple(given.accept))))
    )


if __name__ == "__main__":
    main()
