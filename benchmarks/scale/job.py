"""A job: who reads which data set from which store, and what that costs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from benchmarks.harness.meter import Figures, Meter, peak_mb
from benchmarks.scale.shape import BUCKET, Shape
from streamrec import Dataset, TFRecordDataset, bridge
from streamrec.pipeline.sources.global_shuffle.lanes import LaneOrder
from streamrec.pipeline.sources.global_shuffle.steps import Steps
from streamrec.shards import (
    Index,
    Listing,
    Portion,
    assign_shards,
    list_shards,
    open_index,
    sizes_of,
)
from streamrec.storage import Storage, Storages
from tests.servers.control import RemoteControl
from tests.servers.faults import Faults
from tests.servers.program import ServerProcess

BATCH = 64
GLOB = f"{BUCKET}train-*.tfrecord"
MANIFEST = f"{BUCKET}manifest.json"
INDEX = f"{BUCKET}train.index"
WAYS = ("glob", "braces, manifest", "braces, index")
REQUESTS = {"lists": "list", "heads": "stat", "gets": "read"}

Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Who reads what.

    Attributes:
        shards, records: The data set: see `Shape`.
        ranks, workers: How many there are.
        batch: The global batch of `global_shuffle`.
        url: Where the data set is served.
        folder: Where the server finds the manifest and the index.
    """

    shards: int
    records: int
    ranks: int
    workers: int
    batch: int
    url: str = ""
    folder: str = ""

    @cached_property
    def shape(self) -> Shape:
        """The data set."""
        return Shape(self.shards, self.records)

    @property
    def readers(self) -> int:
        """The workers of all ranks."""
        return self.ranks * self.workers

    @property
    def options(self) -> dict[str, Any]:
        """The storage options."""
        return {"endpoint_url": self.url, "anon": True}

    def dataset(self, way: str) -> Dataset[Any]:
        """Batches of one reader; `way` says how the shards are named, and what else says where
        records are.
        """
        braces = f"{BUCKET}train-{{000000..{self.shards - 1:06d}}}.tfrecord"
        names = GLOB if way.startswith("glob") else braces
        data: Dataset[Any] = TFRecordDataset(
            names, "", num_parallel_reads=4, storage_options=self.options
        )
        if "index" in way:
            data = data.global_shuffle(7, index=INDEX, global_batch_size=self.batch)
        elif "manifest" in way:
            data = data.distribute(even="drop", manifest=MANIFEST).batch(BATCH)
        else:
            data = data.distribute().batch(BATCH)
        return data.with_options(memory_budget=256 << 20)

    def read(self, find: Callable[[Storage, str], Awaitable[T]], url: str) -> T:
        """What the library finds at a URL, over a connection of its own."""

        async def found() -> T:
            async with Storages(self.options) as storages:
                return await find(await storages.at(url), url)

        return bridge.run(found)

    async def listing(self) -> Listing:
        """All shards, by requests to the store."""
        async with Storages(self.options) as storages:
            return await list_shards(storages, GLOB)

    async def plan(self, listing: Listing) -> list[list[Portion]]:
        """The plan of all readers, from the store's listing."""
        async with Storages(self.options) as storages:
            sizes = await sizes_of(storages, listing.paths, listing.known, self.readers)
            return await assign_shards(storages, sizes, self.readers, "")

    def index(self) -> Index:
        """The index, as `global_shuffle` opens it."""
        return self.read(open_index, INDEX)

    def order(self, index: Index, epoch: int) -> LaneOrder:
        """The order of an epoch, as the readers find it."""
        source: Any = self.dataset("braces, index").chain.source
        order: LaneOrder = source._order(index, epoch, is_in_lanes=True)
        return order

    def steps(self, rank: int, *, worker: int = 0, workers: int = 1, base: int = 0) -> Steps:
        """The steps of one reader of a global shuffle, from the position `base` on."""
        return Steps(
            total=self.shape.total,
            batch=self.batch,
            rank=rank,
            world_size=self.ranks,
            worker=worker,
            workers=workers,
            base=base,
        )


@contextmanager
def serving(job: Job, faults: Faults) -> Iterator[Job]:
    """The job with its store, which is a process of its own."""
    with TemporaryDirectory() as folder:
        shape = ("--shards", str(job.shards), "--records", str(job.records))
        options = (*shape, "--folder", folder)
        with ServerProcess("benchmarks.scale.store", options, faults) as server:
            yield replace(job, url=server.url, folder=folder)


def cost_of(job: Job, work: Callable[[], T]) -> tuple[T, Figures]:
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
