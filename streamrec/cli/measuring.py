"""How `streamrec bench` measures: requests by a number of connections, other clients, records.

What is measured, and what follows from it, is `sweep.py`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from itertools import count, islice
from typing import Final

import streamrec
from streamrec.cli.clients import CLIENTS, Read, opened
from streamrec.cli.library import Storage, Storages
from streamrec.cli.output import Meter
from streamrec.cli.reading import batches, map_concurrently
from streamrec.cli.sources import Item, storages_for
from streamrec.cli.sweep import SIZES, BenchPlan, Measured, SideBySide, median_of

OURS: Final = f"streamrec {streamrec.__version__}"
AHEAD_BYTES: Final = 128 << 20
LEAST_AHEAD_BYTES: Final = 8 << 20
"""How far a data set reads ahead, if the budget allows, and in any case."""

BATCH_BYTES: Final = 1 << 20
"""Of records: small, so that little is missing where the time is over within a batch."""


def ranges_of(objects: Sequence[Item], size: int) -> Iterator[tuple[str, int, int]]:
    """Ranges of `size` bytes of all objects in turn, endlessly: path, start and end.

    A shorter object is one range.

    Examples:
        >>> found = ranges_of([Item(path="a", size=25), Item(path="b", size=5)], 10)
        >>> [part for part, _ in zip(found, range(4))]
        [('a', 0, 10), ('b', 0, 5), ('a', 10, 20), ('a', 0, 10)]
    """
    for step in count():
        whole = max(1, max(item.size or 0 for item in objects) // size)
        start = step % whole * size
        for item in objects:
            if start + size <= (item.size or 0) or start == 0:
                yield item.path, start, min(start + size, item.size or 0)


async def measure(
    objects: Sequence[Item], connections: int, size: int, plan: BenchPlan
) -> Measured:
    """Reads ranges of `size` bytes, with `connections` at the same time.

    It begins no request once the plan's seconds are over, or its share of the budget is used. A
    range of up to 4 MiB is one request.
    """
    ranges = islice(ranges_of(objects, size), plan.requests(connections, size))
    first_byte: list[float] = []
    # A buffer for each worker: memory is not what is measured here.
    buffers = [memoryview(bytearray(size)) for _ in range(connections)]
    async with storages_for(objects[0].storage_options) as storages:
        storage = await storages.at(objects[0].path)

        async def read_range(path: str, start: int, end: int) -> int:
            buffer = buffers.pop()
            nbytes = await read(storage, path, start, end, buffer=buffer, first_byte=first_byte)
            buffers.append(buffer)
            return nbytes

        # To connect takes as long as several requests: it is not part of a second of reading.
        await connect(read_with(storage), objects, connections)
        before = sums(storages)
        found = await measure_requests(read_range, ranges, connections, plan.seconds)
        requests, retries, throttled = (
            after - earlier for after, earlier in zip(sums(storages), before, strict=True)
        )
    return replace(
        found,
        first_byte=first_byte,
        requests=requests,
        retries=retries,
        throttled=throttled,
    )


async def measure_requests(
    read_range: Read, ranges: Iterator[tuple[str, int, int]], connections: int, seconds: float
) -> Measured:
    """Reads ranges with a client, and begins none once the seconds are over.

    The rate is the sum of the rates of all connections, each until its own last byte. The time
    until the last of all would show the speed of a few connections, where requests are slow.
    """
    whole: list[float] = []
    done: list[tuple[int, float]] = []
    began = time.perf_counter()
    cpu = time.process_time()

    async def work(_: int) -> None:
        nbytes = 0
        # All connections take ranges from one iterator, so that a slow one delays no other.
        while (asked := time.perf_counter()) < began + seconds:
            path, start, end = next(ranges, ("", 0, 0))
            if not path:
                break
            nbytes += await read_range(path, start, end)
            whole.append(time.perf_counter() - asked)
        done.append((nbytes, time.perf_counter() - began))

    await map_concurrently(work, range(connections), connections)
    total = sum(nbytes for nbytes, _ in done)
    rate = sum(nbytes / took for nbytes, took in done)
    return Measured(
        nbytes=total,
        seconds=total / rate if rate else time.perf_counter() - began,
        cpu_seconds=time.process_time() - cpu,
        whole=whole,
        requests=len(whole),
    )


def sums(storages: Storages) -> tuple[int, int, int]:
    """Requests, those that were made again or twice, and answers that asked for fewer."""
    counts = list(storages.statistics.snapshot().backends.values())
    return (
        sum(item.requests for item in counts),
        sum(sum(item.retries.values()) + item.hedges for item in counts),
        sum(item.throttled for item in counts),
    )


async def connect(read: Read, objects: Sequence[Item], connections: int) -> None:
    """Lets a client open its connections: each asks for the first byte of an object."""
    paths = [objects[number % len(objects)].path for number in range(connections)]

    async def ask(path: str) -> None:
        await read(path, 0, 1)

    await map_concurrently(ask, paths, connections)


async def compare(
    objects: Sequence[Item], connections: int, plan: BenchPlan, meter: Meter
) -> SideBySide:
    """Lets streamrec and the plan's clients read the same ranges in turn, for the same time."""
    cells: dict[tuple[str, str], Measured] = {}
    async with sides_of(objects, plan.against, connections) as sides:
        for name, size in SIZES.items():
            repeats: dict[str, list[Measured]] = {label: [] for label in sides}
            for _ in range(plan.repeats):
                for label, read_range in sides.items():
                    ranges = islice(ranges_of(objects, size), plan.requests(connections, size))
                    found = await measure_requests(read_range, ranges, connections, plan.seconds)
                    repeats[label].append(found)
                    meter.add(found.nbytes)
            cells |= {(name, label): median_of(found) for label, found in repeats.items()}
    return SideBySide(connections=connections, cells=cells)


@asynccontextmanager
async def sides_of(
    objects: Sequence[Item], against: Sequence[str], connections: int
) -> AsyncIterator[dict[str, Read]]:
    """All clients, ours first, by their labels. All are open and have their connections.

    Raises:
        click.UsageError: A client does not fit the objects.
        MissingExtraError: It is not installed.
        StorageError: It does not read them. The message has the client's own words.
    """
    async with AsyncExitStack() as stack:
        storages = await stack.enter_async_context(storages_for(objects[0].storage_options))
        sides = {OURS: read_with(await storages.at(objects[0].path))}
        for name in against:
            client = CLIENTS[name]
            client.check(objects[0].path)
            # Without what is streamrec's own, such as the cache on a disk.
            client_opened = opened(client, storages.storage_options, connections)
            sides[client.label] = await stack.enter_async_context(client_opened)
        for read_range in sides.values():
            await connect(read_range, objects, connections)
        yield sides


async def measure_dataset(
    objects: Sequence[Item], reads: int, record_bytes: float, plan: BenchPlan
) -> Measured:
    """Reads shards as a training loop does, with every CRC32C checked.

    It takes twice the plan's seconds, or its part of the budget, and begins again at the end of
    short shards.
    """
    # What is read ahead when the run is stopped was paid for, too.
    ahead = min(AHEAD_BYTES, max(plan.dataset_bytes // 2, LEAST_AHEAD_BYTES))
    most = max(1, plan.dataset_bytes - ahead)
    # With its first batch, a process imports the pipeline: that is not the speed of the store.
    first = batches(
        objects[:1], record_bytes, Meter(), batch_bytes=BATCH_BYTES, memory_bytes=LEAST_AHEAD_BYTES
    )
    async with aclosing(first):
        await anext(first, None)
    meter = Meter()
    began = time.perf_counter()
    cpu = time.process_time()
    until = began + 2 * plan.seconds
    # The time is looked at when a batch arrives, so the first one counts however late it is.
    while meter.done < most and time.perf_counter() < until:
        taken = batches(
            objects,
            record_bytes,
            meter,
            batch_bytes=BATCH_BYTES,
            memory_bytes=ahead,
            num_parallel_reads=reads,
        )
        async with aclosing(taken):
            async for _ in taken:
                if meter.done >= most or time.perf_counter() > until:
                    break
    return Measured(
        nbytes=meter.done,
        seconds=time.perf_counter() - began,
        cpu_seconds=time.process_time() - cpu,
    )


def read_with(storage: Storage) -> Read:
    """Reads ranges of a store into new buffers, as other clients do."""

    async def read_range(path: str, start: int, end: int) -> int:
        buffer = memoryview(bytearray(end - start))
        return await read(storage, path, start, end, buffer=buffer)

    return read_range


async def read(
    storage: Storage,
    path: str,
    start: int,
    end: int,
    *,
    buffer: memoryview,
    first_byte: list[float] | None = None,
) -> int:
    """Reads a range into the buffer; returns the number of bytes.

    A list receives the seconds to the answer's head.

    Raises:
        StorageError: The object ends within the range.
    """
    asked = time.perf_counter()
    stream = await storage.stream(path, start, end)
    if first_byte is not None:
        first_byte.append(time.perf_counter() - asked)
    try:
        filled = 0
        while filled < end - start:
            got = await stream.readinto(buffer[filled : end - start])
            if not got:
                raise streamrec.StorageError(
                    "the object ends before its size: was it replaced? list it again", path
                )
            filled += got
        return filled
    finally:
        await stream.aclose()
