"""How fast a store delivers ranges of objects, with a given number of requests at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from typing import Any

import streamrec
from streamrec.cli.output import Meter
from streamrec.cli.reading import batches, map_concurrently
from streamrec.cli.sources import Item, storages_for
from streamrec.storage import Distribution, Storage


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement.

    Attributes:
        nbytes: Bytes that arrived.
        seconds: The time they took.
        cpu_seconds: Processor time that this process spent on them.
        first_byte: How long requests took to their first byte; None where that was not measured.
        retries: Requests that were made again, or sent because another was late.
    """

    nbytes: int
    seconds: float
    cpu_seconds: float
    first_byte: Distribution | None = None
    retries: int = 0

    @property
    def rate(self) -> float:
        """Megabytes (10**6) a second."""
        return self.nbytes / self.seconds / 1e6

    @property
    def cpu_per_gb(self) -> float:
        """Seconds of processor time for each gigabyte (10**9)."""
        return self.cpu_seconds / self.nbytes * 1e9 if self.nbytes else 0.0


def ranges_of(objects: Sequence[Item], size: int) -> Iterator[tuple[str, int, int]]:
    """Path, start and end of ranges of `size` bytes, of all objects in turn, without end; of a shorter one, all of it.

    Examples:
        >>> found = ranges_of([Item("a", 25), Item("b", 5)], 10)
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
    objects: Sequence[Item], connections: int, size: int, seconds: float, storage_options: Mapping[str, Any]
) -> Measured:
    """Reads ranges of `size` bytes for a given time, `connections` at once; up to 4 MiB, each is one request."""
    ranges = ranges_of(objects, size)
    async with storages_for(storage_options) as storages:
        storage = await storages.at(objects[0].path)
        began, cpu = time.perf_counter(), time.process_time()

        async def work(_: int) -> int:
            buffer, done = memoryview(bytearray(size)), 0
            while time.perf_counter() < began + seconds:
                done += await read(storage, *next(ranges), buffer)
            return done

        nbytes = sum(await map_concurrently(work, range(connections), connections))
        took, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        counts = list(storages.statistics.snapshot().backends.values())
    retries = sum(sum(item.retries.values()) + item.hedges for item in counts)
    return Measured(nbytes, took, cpu_seconds, counts[0].first_byte if counts else None, retries)


async def measure_dataset(
    objects: Sequence[Item], reads: int, record_bytes: float, seconds: float, storage_options: Mapping[str, Any]
) -> Measured:
    """Reads shards as a training loop does, with every CRC32C checked, for a given time, if need be several times."""
    began, cpu, meter = time.perf_counter(), time.process_time(), Meter()
    while time.perf_counter() < began + seconds:
        async with aclosing(batches(objects, record_bytes, storage_options, meter, num_parallel_reads=reads)) as taken:
            async for _ in taken:
                if time.perf_counter() > began + seconds:
                    break
    return Measured(meter.done, time.perf_counter() - began, time.process_time() - cpu)


async def read(storage: Storage, path: str, start: int, end: int, buffer: memoryview) -> int:
    """Reads a range into the buffer; returns its size."""
    stream = await storage.stream(path, start, end)
    try:
        filled = 0
        while filled < end - start:
            got = await stream.readinto(buffer[filled : end - start])
            if not got:
                raise streamrec.StorageError("the object ends before its size: was it replaced?", path)
            filled += got
        return filled
    finally:
        await stream.aclose()
