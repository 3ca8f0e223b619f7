"""A job: who reads which data set, and what work costs it; and the checks of the simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.harness.meter import Figures, Meter, peak_mb
from benchmarks.scale import store
from benchmarks.scale.shape import Numbers, Shape
from streamrec import Dataset, Frames, TFRecordDataset
from streamrec.pipeline.sources.global_shuffle.lanes import LaneOrder
from streamrec.shards import (
    Index,
    Listing,
    Manifest,
    Portion,
    assign_shards,
    list_shards,
    open_index,
    read_manifest,
    sizes_of,
)
from streamrec.storage import Storages
from tests.servers.control import RemoteControl
from tests.servers.faults import Faults

BATCH = 64
MANIFEST, INDEX = "s3://bucket/manifest.json", "s3://bucket/train.index"
WAYS = ("glob", "braces, manifest", "braces, index")
REQUESTS = {"lists": "list", "heads": "stat", "gets": "read"}


@dataclass(frozen=True, kw_only=True)
class Job:
    """Who reads what.

    Attributes:
        shape: The data set.
        ranks, workers: How many there are.
        batch: The global batch of `global_shuffle`.
        url: Where the data set is served.
        folder: Where the server finds the manifest and the index.
    """

    shape: Shape
    ranks: int
    workers: int
    batch: int
    url: str = ""
    folder: str = ""

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Job:
        """The job that `asdict` made words of, for a process."""
        return cls(**{**words, "shape": Shape(**words["shape"])})

    @property
    def words(self) -> dict[str, Any]:
        """What a process is told of it."""
        return asdict(self)

    @property
    def readers(self) -> int:
        """The workers of all ranks."""
        return self.ranks * self.workers

    def dataset(self, way: str) -> Dataset[Any]:
        """Batches of one reader; `way` says how the shards are named, and what else says where
        records are.
        """
        last = self.shape.path(self.shape.shards - 1)[18:24]
        names = "*" if way.startswith("glob") else f"{{000000..{last}}}"
        pattern = f"s3://bucket/train-{names}.tfrecord"
        options = {"endpoint_url": self.url, "anon": True}
        data = TFRecordDataset(pattern, "", num_parallel_reads=4, storage_options=options)
        if "index" in way:
            data = data.global_shuffle(7, index=INDEX, global_batch_size=self.batch)
        elif "manifest" in way:
            data = data.distribute(even="drop", manifest=MANIFEST).batch(BATCH)
        else:
            data = data.distribute().batch(BATCH)
        return data.with_options(memory_budget=256 << 20)

    def storages(self) -> Storages:
        """The store's clients, with a new connection each time."""
        return Storages({"endpoint_url": self.url, "anon": True})

    async def warm_up(self) -> None:
        """Makes a client, so that what is loaded late counts for nothing that comes after."""
        async with self.storages() as storages:
            await (await storages.at(MANIFEST)).stat(MANIFEST)

    async def listing(self) -> Listing:
        """All shards, by requests to the store."""
        async with self.storages() as storages:
            return await list_shards(storages, "s3://bucket/train-*.tfrecord")

    async def plan(self, listing: Listing) -> list[list[Portion]]:
        """The plan of all readers, from the store's listing."""
        async with self.storages() as storages:
            sizes = await sizes_of(storages, listing.paths, listing.known, self.readers)
            return await assign_shards(storages, sizes, self.readers, "")

    async def index(self) -> Index:
        """The index, as `global_shuffle` opens it."""
        async with self.storages() as storages:
            return await open_index(await storages.at(INDEX), INDEX)

    async def manifest(self) -> Manifest:
        """The manifest, as `distribute` reads it."""
        async with self.storages() as storages:
            return await read_manifest(await storages.at(MANIFEST), MANIFEST)

    def order(self, index: Index, epoch: int) -> LaneOrder:
        """The order of an epoch, as the readers find it."""
        source: Any = self.dataset("braces, index").chain.source
        order: LaneOrder = source._order(index, epoch, is_in_lanes=True)
        return order


@contextmanager
def serving(job: Job, faults: Faults) -> Iterator[Job]:
    """The job with its store, which is a process of its own."""
    with TemporaryDirectory() as folder, store.serving(job.shape, folder, faults) as url:
        yield replace(job, url=url, folder=folder)


def cost_of(job: Job, work: Callable[[], Any]) -> tuple[Any, Figures]:
    """What work gives, and what it costs: seconds, those of the processor, requests, and MB at its
    peak.
    """
    control, before = RemoteControl(job.url), peak_mb()
    control.clear()
    with Meter() as meter:
        result = work()
    counters = control.counters
    cost = {"s": meter.seconds, "cpu_s": meter.cpu_seconds}
    cost |= {name: counters.by_kind.get(kind, 0) for name, kind in REQUESTS.items()}
    return result, {**cost, "sent_mb": counters.sent / 1e6, "peak_mb": peak_mb() - before}


def check(fine: bool, what: str) -> None:
    """Ends the simulation where an invariant does not hold."""
    if not fine:
        raise RuntimeError(f"the simulation found an error: {what}")


def check_each_once(ranges: Numbers, total: int, what: str) -> None:
    """Ranges of records must hold each of `total` records once."""
    ranges = ranges[ranges[:, 1] > ranges[:, 0]]
    ordered = ranges[np.argsort(ranges[:, 0])]
    ends = np.concatenate([[0], ordered[:, 1]])
    fine = bool((ordered[:, 0] == ends[:-1]).all()) and int(ends[-1]) == total
    check(fine, f"{what}: not each record once")


def numbers_in(batches: Iterable[Frames]) -> Numbers:
    """The numbers of records, which their payloads begin with."""
    found = [np.empty(0, np.int64)]
    for frames in batches:
        data = np.frombuffer(frames.buffer, np.uint8)
        found.append(data[frames.spans[:, :1] + np.arange(8)].view("<i8")[:, 0])
    return np.concatenate(found)


def numbers_of(ranges: Iterable[Sequence[int]]) -> Numbers:
    """The numbers in ranges."""
    found = [np.arange(first, last) for first, last in ranges]
    return np.concatenate([np.empty(0, np.int64), *found])
