"""Training at scale, simulated: 10^5 shards, 10^9 records, 1,024 ranks of 8 workers, and 768 ranks
from mid-epoch on.

    python -m benchmarks.scale [--save] [--shards 100000] [--records 10000] [--ranks 1024]
        [--after 768] [--workers 8]

The data set exists as arithmetic: a record holds its own number, and the store makes the bytes of a
shard when it is asked for them. It answers after 30 to 50 ms, at 60 MB/s a connection, speaks S3
over HTTP and counts requests.

- growth: what a listing, a manifest, an index, a plan, a state and a resumption cost at 10^6 to
  10^9 records, each in a process of its own.
- start: what one of all readers needs until its first batch, in each way of naming the shards, and
  its peak memory.
- plan: the plans of all readers are made, by the library, from the store's listing, its manifest
  and its index. Their records are counted: each must come once in each of three epochs, and in the
  epoch in which the ranks change.
- read: some ranks read their records from the store, each in a process; these must be the ones that
  the plan says. The first of them reads three epochs, the others one.
- nodes: requests, seconds and dollars of 10, 100 and 1,000 nodes of 8 ranks, from the plans and
  from what readers cost.

`distribute` refuses the state of another number of readers, so the new ranks read the rest of all
old readers, each with its own state. `global_shuffle` resumes from one state with any number of
ranks.

Prices and rates are assumptions: the Amazon S3 pricing page (S3 Standard, US East) has $0.0004 for
1,000 GETs and $0.005 for 1,000 LISTs; the S3 User Guide ("Optimizing Amazon S3 performance") has
5,500 GETs a second for a prefix.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import islice, pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import scale_store
from benchmarks.harness.meter import peak_mb
from benchmarks.harness.process import in_own_process
from benchmarks.machine import describe, save
from benchmarks.scale_store import KINDS, Numbers, Shape
from streamrec import Dataset, Frames, TFRecordDataset, bridge
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.sources.global_shuffle.lane_reading import own_cells
from streamrec.pipeline.sources.global_shuffle.lanes import Lane, LaneOrder
from streamrec.pipeline.sources.global_shuffle.steps import Steps
from streamrec.shards import (
    Index,
    Listing,
    Manifest,
    Portion,
    assign_records,
    assign_shards,
    list_shards,
    open_index,
    read_manifest,
    sizes_of,
)
from streamrec.shards.index import IndexedShard, IndexEncoder
from streamrec.storage import Storages
from streamrec.tfrecord import LengthPacker
from tests.servers.control import RemoteControl
from tests.servers.faults import Faults

FAR = Faults(first_byte=0.03, jitter=0.02, rate=60e6)
EPOCHS, BATCH, EVERY = 3, 64, 64
REQUESTS = {"lists": "list", "heads": "stat", "gets": "read"}
MANIFEST, INDEX = "s3://bucket/manifest.json", "s3://bucket/train.index"
WAYS = ("glob", "braces, manifest", "braces, index")
GET_DOLLARS, LIST_DOLLARS, GETS_A_SECOND = 0.0004 / 1000, 0.005 / 1000, 5500

Call = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Job:
    """Who reads what: as a child process is told it.

    Args:
        shape: The data set.
        url: Where it is served.
        folder: Where the server finds the manifest and the index.
        ranks, workers: How many there are.
        batch: The global batch of `global_shuffle`.
    """

    shape: Shape
    url: str
    folder: str
    ranks: int
    workers: int
    batch: int

    @classmethod
    def of(cls, job: Sequence[Any]) -> Job:
        return cls(Shape(*job[0]), *job[1:])

    @property
    def readers(self) -> int:
        return self.ranks * self.workers

    @property
    def options(self) -> dict[str, Any]:
        return {"endpoint_url": self.url, "anon": True}

    def dataset(self, way: str) -> Dataset[Any]:
        """Batches of one reader; `way` says how the shards are named, and what else says where
        records are.
        """
        last = self.shape.path(self.shape.shards - 1)[18:24]
        names = (
            f"s3://bucket/train-{'*' if way.startswith('glob') else f'{{000000..{last}}}'}.tfrecord"
        )
        data = TFRecordDataset(names, "", num_parallel_reads=4, storage_options=self.options)
        if "index" in way:
            data = data.global_shuffle(7, index=INDEX, global_batch_size=self.batch)
        else:
            even: Any = "drop" if "manifest" in way else None
            data = data.distribute(even=even, manifest=MANIFEST if even else None).batch(BATCH)
        return data.with_options(memory_budget=256 << 20)

    async def warm_up(self) -> None:
        """Makes a client, so that what is loaded late counts for nothing that comes after."""
        async with Storages(self.options) as storages:
            await (await storages.at(MANIFEST)).stat(MANIFEST)

    async def listing(self) -> Listing:
        async with Storages(self.options) as storages:
            return await list_shards(storages, "s3://bucket/train-*.tfrecord")

    async def plan(self, listing: Listing) -> list[list[Portion]]:
        """The plan of all readers, from the store's listing."""
        async with Storages(self.options) as storages:
            sizes = await sizes_of(storages, listing.paths, listing.known, self.readers)
            return await assign_shards(storages, sizes, self.readers, "")

    async def index(self) -> Index:
        async with Storages(self.options) as storages:
            return await open_index(await storages.at(INDEX), INDEX)

    async def manifest(self) -> Manifest:
        async with Storages(self.options) as storages:
            return await read_manifest(await storages.at(MANIFEST), MANIFEST)

    def order(self, index: Index, epoch: int) -> LaneOrder:
        """The order of an epoch, as the readers find it."""
        source: Any = self.dataset("braces, index").chain.source
        order: LaneOrder = source._order(index, epoch, is_in_lanes=True)
        return order


def measured(job: Job, work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What work gives, and what it costs: seconds, those of the processor, requests, and MB at its
    peak.
    """
    control, before = RemoteControl(job.url), peak_mb()
    control.clear()
    began, cpu = time.perf_counter(), time.process_time()
    result = work()
    cost = {"s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
    counters = control.counters
    requests = {name: counters.by_kind.get(kind, 0) for name, kind in REQUESTS.items()}
    return result, {
        **cost,
        **requests,
        "sent_mb": counters.sent / 1e6,
        "peak_mb": peak_mb() - before,
    }


def check(fine: bool, what: str) -> None:
    """Ends the simulation where an invariant does not hold."""
    if not fine:
        raise RuntimeError(f"the simulation found an error: {what}")


def check_each_once(ranges: Numbers, total: int, what: str) -> None:
    """Ranges of records must hold each of `total` records once."""
    ranges = ranges[ranges[:, 1] > ranges[:, 0]]
    ordered = ranges[np.argsort(ranges[:, 0])]
    ends = np.concatenate([[0], ordered[:, 1]])
    check(
        bool((ordered[:, 0] == ends[:-1]).all()) and int(ends[-1]) == total,
        f"{what}: not each record once",
    )


def numbers_in(batches: Iterable[Frames]) -> Numbers:
    """The numbers of records, which their payloads begin with."""
    found = [np.empty(0, np.int64)]
    for frames in batches:
        data = np.frombuffer(frames.buffer, np.uint8)
        found.append(data[frames.spans[:, :1] + np.arange(8)].view("<i8")[:, 0])
    return np.concatenate(found)


def numbers_of(ranges: Iterable[Sequence[int]]) -> Numbers:
    return np.concatenate(
        [np.empty(0, np.int64), *(np.arange(first, last) for first, last in ranges)]
    )


@contextmanager
def as_worker(worker: int, workers: int) -> Iterator[None]:
    """Within it, this process is a loader worker of torch."""
    info = SimpleNamespace(id=worker, num_workers=workers)
    with patch.dict(
        sys.modules, {"torch.utils.data": SimpleNamespace(get_worker_info=lambda: info)}
    ):
        yield


# What child processes do.


def write_tables(job: Job) -> dict[str, Any]:
    """Writes the manifest and the index."""
    infos, folder, found = tuple(job.shape.infos()), Path(job.folder), {}
    began = time.perf_counter()
    pattern = "s3://bucket/train-{shard:06d}.tfrecord"
    (folder / "manifest.json").write_bytes(Manifest(MANIFEST, pattern, "", infos).to_json())
    found["manifest_write_s"] = time.perf_counter() - began
    packers = [LengthPacker() for _ in range(KINDS)]
    for kind, packer in enumerate(packers):
        packer.add(job.shape.lengths[: job.shape.counts[kind]])
    lengths, encoder = [packer.finish() for packer in packers], IndexEncoder(INDEX, pattern)
    began = time.perf_counter()
    with open(folder / "train.index", "wb") as file:
        for shard, info in enumerate(infos):
            file.write(encoder.add(IndexedShard(info, lengths[shard % KINDS])))
        file.write(encoder.finish()[1])
    found["index_write_s"] = time.perf_counter() - began
    for name, file in (("manifest", "manifest.json"), ("index", "train.index")):
        found[f"{name}_mb"] = (folder / file).stat().st_size / 1e6
    return found


def read_tables(job: Job, table: str) -> dict[str, Any]:
    """Lists the shards and plans for all readers; or opens the manifest and plans for one; or opens
    the index.
    """
    bridge.run(job.warm_up)
    if table == "index":
        return measured(job, lambda: bridge.run(job.index))[1]
    if table == "manifest":
        manifest, cost = measured(job, lambda: bridge.run(job.manifest))
        plan_one = partial(
            assign_records, manifest.shards, job.readers, job.readers // 2, "drop", MANIFEST
        )
        return {**cost, "plan_s": measured(job, plan_one)[1]["cpu_s"]}
    listing, cost = measured(job, lambda: bridge.run(job.listing))
    check(len(listing.paths) == job.shape.shards, "a listing has other shards")
    return {**cost, "plan_s": measured(job, lambda: bridge.run(job.plan, listing))[1]["cpu_s"]}


def start(job: Job, way: str, most: int) -> dict[str, Any]:
    """One reader: its first batch, its state, the rest of up to `most` batches, and the first batch
    from the state.
    """
    number = (job.ranks // 2, job.ranks) if "index" in way else (job.readers // 2, job.readers)

    def begin(state: Any = None) -> Any:
        batches = job.dataset(way).with_options(rank=number[0], world_size=number[1]).iterate(state)
        next(batches)
        return batches

    before = peak_mb()
    batches, first = measured(job, begin)
    with closing(batches):
        began = time.perf_counter()
        state = json.dumps(batches.state_dict())
        seconds = time.perf_counter() - began
        for _ in islice(batches, most):
            pass
    found = {"state_bytes": len(state), "state_ms": seconds * 1e3, "peak_mb": peak_mb() - before}
    batches, resumed = measured(job, lambda: begin(json.loads(state)))
    batches.close()
    resumed = {
        f"resume_{key}": value for key, value in resumed.items() if key not in ("peak_mb", "cpu_s")
    }
    return {**first, **found, **resumed}


def read_rank(job: Job, rank: int, epochs: int, expected: list[list[list[int]]]) -> dict[str, Any]:
    """One rank of `distribute`: all its workers, in turn, and some epochs; they must get what their
    plans say.
    """
    dataset = job.dataset("glob")

    def read() -> int:
        records = 0
        for epoch in range(epochs):
            for worker, ranges in enumerate(expected):
                with as_worker(worker, job.workers):
                    own = dataset.with_options(rank=rank, world_size=job.ranks, epoch=epoch)
                    numbers = np.sort(numbers_in(own))
                check(
                    np.array_equal(numbers, numbers_of(ranges)),
                    f"worker {worker} of rank {rank} read others",
                )
                records += len(numbers)
        return records

    records, cost = measured(job, read)
    return {"rank": rank, "ranks": job.ranks, "records": records, **cost}


def change_ranks(
    job: Job, rank: int, ranks: int, expected: dict[str, list[list[int]]]
) -> dict[str, Any]:
    """A new rank reads the rest of some old readers, each of which had read half, with the state of
    each.
    """
    dataset, records, error = job.dataset("glob"), 0, ""
    for number, ranges in expected.items():
        old = dataset.with_options(rank=int(number), world_size=job.readers)
        wanted = numbers_of(ranges)
        with closing(old.iterate()) as batches:
            first = numbers_in(islice(batches, len(wanted) // BATCH // 2))
            state = json.loads(json.dumps(batches.state_dict()))
        rest = numbers_in(old.iterate(state))
        check(
            np.array_equal(np.sort(np.concatenate([first, rest])), wanted),
            f"reader {number} repeats or skips",
        )
        records += len(rest)
        try:
            next(dataset.with_options(rank=rank, world_size=ranks * job.workers).iterate(state))
        except PositionMismatchError as refused:
            error = str(refused)
    check(bool(error), "distribute took the state of another number of readers")
    return {
        "rank": rank,
        "ranks": ranks,
        "old_readers": len(expected),
        "records": records,
        "refused": error,
    }


def read_shuffled(job: Job, rank: int, epoch: int, steps: int, state: Any = None) -> dict[str, Any]:
    """One rank of `global_shuffle`: so many steps, from the start or from a state; they must be
    those of the order.
    """
    dataset = job.dataset("glob, index").with_options(rank=rank, world_size=job.ranks, epoch=epoch)

    def read() -> tuple[Numbers, Any]:
        with closing(dataset.iterate(state)) as batches:
            return numbers_in(islice(batches, steps)), batches.state_dict()

    (numbers, after), cost = measured(job, read)
    base = 0 if state is None else state["position"]["source"]["position"]
    own = Steps(total=job.shape.total, batch=job.batch, rank=rank, world_size=job.ranks, base=base)
    positions = np.concatenate([own.positions(step) for step in range(steps)])
    order = job.order(bridge.run(job.index), epoch)
    check(
        np.array_equal(numbers, order.records(positions)),
        f"rank {rank} of {job.ranks} read others",
    )
    return {
        "rank": rank,
        "ranks": job.ranks,
        "epoch": epoch,
        "records": len(numbers),
        **cost,
        "state": after,
    }


# Plans.


def sequence(lane: Lane) -> Numbers:
    """The records of a lane, in order."""
    found = [np.empty(0, np.int64)]
    for part, (first, last) in enumerate(pairwise(lane.before.tolist())):
        offsets = lane.offsets(part, lane.cells(part), np.arange(first, last))
        found.append(lane.parts.starts[part] + offsets)
    return np.concatenate(found)


def check_epoch(job: Job, epoch: int, phases: Sequence[Sequence[int]]) -> dict[str, Any]:
    """An epoch of `global_shuffle`: each record has one position, and one reader takes each
    position.

    Of all lanes, the parts must hold each record once; of one lane, the order must hold each record
    of its parts.

    Args:
        job: The job.
        epoch: Which epoch.
        phases: Numbers of ranks, and of each the step at which it begins and the one at which it
            stops.
    """
    began, order = time.perf_counter(), job.order(bridge.run(job.index), epoch)
    parts = [order.lane(number).parts for number in range(order.lanes.count)]
    ranges = [np.stack([own.starts, own.starts + own.counts], 1) for own in parts]
    check_each_once(np.concatenate(ranges), job.shape.total, "the parts of an order")
    records = np.sort(sequence(order.lane(epoch)))
    check(
        np.array_equal(records, np.sort(numbers_of(ranges[epoch]))),
        "a lane has others than its parts",
    )
    taken = []
    for ranks, first, last in phases:
        for rank, worker in product(range(ranks), range(job.workers)):
            own = Steps(
                total=job.shape.total,
                batch=job.batch,
                rank=rank,
                world_size=ranks,
                worker=worker,
                workers=job.workers,
                base=first * job.batch,
            )
            for step, positions in own.runs(own.next_own(0), 1 << 12):
                rows = positions[: len(range(step, last - first, job.workers))]
                check(
                    bool((np.diff(rows[:1]) == 1).all()), "a rank's slots do not follow each other"
                )
                taken.append(np.stack([rows[:, 0], rows[:, -1] + 1], 1))
    check_each_once(np.concatenate(taken), job.shape.total, "the positions of all readers")
    return {
        "epoch": epoch,
        "ranks": [ranks for ranks, _, _ in phases],
        "s": time.perf_counter() - began,
    }


def balance(loads: Sequence[float] | Numbers) -> float:
    """The largest load, of the mean."""
    return float(np.max(loads) / np.mean(loads))


def plan_row(job: Job, listing: Listing) -> tuple[dict[str, Any], list[Numbers]]:
    """The plan of all readers of `distribute`, and the records of each."""
    began = time.process_time()
    plan = bridge.run(job.plan, listing)
    row: dict[str, Any] = {"way": "distribute", "ranks": job.ranks, "workers": job.workers}
    row["cpu_s"] = time.process_time() - began
    ranges = [job.shape.ranges(own) for own in plan]
    check_each_once(
        np.concatenate(ranges), job.shape.total, f"{job.readers} readers"
    )  # in each epoch: it has no part
    loads = np.array([int((own[:, 1] - own[:, 0]).sum()) for own in ranges])
    cut = sum(portion.byte_range is not None for own in plan for portion in own)
    by_rank = loads.reshape(job.ranks, -1).sum(1)
    return {
        **row,
        "cut": cut,
        "balance_reader": balance(loads),
        "balance_rank": balance(by_rank),
    }, ranges


def plan_even(job: Job) -> dict[str, Any]:
    """The plans of all ranks of `distribute(even="drop")`, each of which has one reader."""
    shards = bridge.run(job.manifest).shards
    began = time.process_time()
    plans = [assign_records(shards, job.ranks, rank, "drop", MANIFEST) for rank in range(job.ranks)]
    seconds = time.process_time() - began
    each = job.shape.total // job.ranks
    ranges = [job.shape.ranges(own) for own in plans]
    check_each_once(np.concatenate(ranges), each * job.ranks, "even='drop'")
    check(all((own[:, 1] - own[:, 0]).sum() == each for own in ranges), "even='drop' is uneven")
    row = {"way": "even='drop'", "ranks": job.ranks, "workers": 1, "cpu_s": seconds / job.ranks}
    return {**row, "left_out": job.shape.total - each * job.ranks}


def change_row(job: Job, after: int, ranges: Sequence[Numbers]) -> tuple[dict[str, Any], list[int]]:
    """New ranks take over old readers, of which each has read half; who takes which, and how long
    the rest takes.
    """
    records = np.array([int((own[:, 1] - own[:, 0]).sum()) for own in ranges])
    rest = records - records // BATCH // 2 * BATCH
    loads = [int(rest[rank::after].sum()) for rank in range(after)]
    check(sum(loads) == rest.sum(), "a reader's rest is lost")
    row = {"way": "distribute, old readers' states", "ranks": after, "balance_rank": balance(loads)}
    row |= {"repeated": 0, "repeated_by_restart": job.shape.total - int(rest.sum())}
    return row, list(range(0, job.readers, after))


def shuffle_row(job: Job, index: Index, workers: int) -> dict[str, Any]:
    """What all ranks of a global shuffle ask for in an epoch: from the cells of one in EVERY, and
    the ranges in some blocks of each of its lanes.
    """
    order = job.order(index, 0)
    ranks = range(0, job.ranks, EVERY)
    gets, records = np.zeros(len(ranks)), np.zeros(len(ranks))
    for at, rank in enumerate(ranks):
        for worker in range(workers):
            steps = Steps(
                total=len(index),
                batch=job.batch,
                rank=rank,
                world_size=job.ranks,
                worker=worker,
                workers=workers,
            )
            for own in own_cells(order, steps, steps.next_own(0)).values():
                parts = range(0, len(own.lane.parts), max(1, len(own.lane.parts) // 16))
                found = [own.ranges(part) for part in parts]
                some = sum(int((each[:, 1] - each[:, 0]).sum()) for each in found)
                all_records = own.lane.parts.counts.sum()
                records[at] += some / own.lane.parts.counts[list(parts)].sum() * all_records
                gets[at] += sum(map(len, found)) / len(parts) * len(own.lane.parts)
    every = job.ranks / len(ranks)
    return {
        "way": "global_shuffle",
        "ranks": job.ranks,
        "workers": workers,
        "gets": float(gets.sum() * every),
        "times_the_data": float(records.sum() * every / len(index)),
        "balance_rank": balance(records),
    }


def node_rows(
    job: Job, nodes: int, listing: Listing, starts: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """What a bucket sees of this many nodes of 8 ranks, in each way to start."""
    for workers in (1, job.workers):
        here = replace(job, ranks=8 * nodes, workers=workers)
        plan, _ = plan_row(here, listing)
        row = {**plan, "nodes": nodes}
        for cost in starts:
            readers = here.ranks if "index" in cost["way"] else here.readers
            gets, lists = readers * (cost["gets"] + cost["heads"]), readers * cost["lists"]
            dollars, seconds = (
                gets * GET_DOLLARS + lists * LIST_DOLLARS,
                (gets + lists) / GETS_A_SECOND,
            )
            row[cost["way"]] = {"requests": gets + lists, "s_at_rate": seconds, "dollars": dollars}
        yield row


CHILDREN: dict[str, Call] = {
    child.__name__: child
    for child in (
        write_tables,
        read_tables,
        start,
        read_rank,
        change_ranks,
        read_shuffled,
        check_epoch,
        plan_even,
    )
}


def child(row: str, job: Sequence[Any], **task: Any) -> dict[str, Any]:
    return CHILDREN[row](Job.of(job), **task)


def spawned(row: str, job: Sequence[Any], **task: Any) -> dict[str, Any]:
    """The same, in a process of its own."""
    found: dict[str, Any] = in_own_process(child, row=row, job=job, **task)
    return found


def simulate(
    job: Job, growth: Sequence[Shape], after: int, sample: int, call: Call, faults: Faults
) -> dict[str, Any]:
    """All of it; prints each row when it is known.

    Args:
        job: The data set and who reads it; `url` and `folder` are set here.
        growth: Smaller data sets.
        after: How many ranks there are from the middle of an epoch on.
        sample: How many ranks really read.
        call: Runs a child: `spawned`, or `child` in this process.
        faults: How far away the store is.
    """
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("growth", "start", "plan", "read", "nodes")
    }

    def add(kind: str, **row: Any) -> None:
        row = {
            key: float(f"{value:.4g}") if isinstance(value, float) else value
            for key, value in row.items()
        }
        rows[kind].append(row)
        print(json.dumps({"table": kind, **row}), flush=True)

    for shape in (*growth, job.shape):
        with serving(replace(job, shape=shape), faults) as here:
            do = partial(call, job=astuple(here))
            row = do("write_tables")
            for table in ("plan", "manifest", "index"):
                row |= {
                    f"{table}_{key}": value for key, value in do("read_tables", table=table).items()
                }
            few = min(64, job.ranks)
            for way in WAYS if shape != job.shape else ():
                small = astuple(replace(here, ranks=few, workers=1))
                row[way] = call("start", job=small, way=way, most=0)
            add("growth", shards=shape.shards, records=shape.total, **row)
            if shape == job.shape:
                listing = bridge.run(here.listing)
                simulate_job(here, listing, after, sample, do, add)
                for nodes in (10, 100, 1000) if job.ranks > 1000 else (1,):
                    for row in node_rows(here, nodes, listing, rows["start"]):
                        add("nodes", **row)
    return rows


def simulate_job(
    job: Job, listing: Listing, after: int, sample: int, do: Call, add: Callable[..., None]
) -> None:
    """The rows of a job."""
    for way in WAYS:
        add("start", way=way, **do("start", way=way, most=2000))
    row, ranges = plan_row(job, listing)
    add("plan", **row)
    add("plan", **plan_row(replace(job, ranks=after), listing)[0])
    change, old = change_row(job, after, ranges)
    add("plan", **change)
    index = bridge.run(job.index)
    for ranks in (job.ranks, after):
        for workers in (1, job.workers):
            add("plan", **shuffle_row(replace(job, ranks=ranks), index, workers))
    half = job.shape.total // job.batch // 2
    steps = -(-job.shape.total // job.batch)
    phases = (
        [[job.ranks, 0, steps]],
        [[job.ranks, 0, half], [after, half, steps]],
        [[after, 0, steps]],
    )
    with ThreadPoolExecutor(2) as pool:
        even = pool.submit(do, "plan_even")
        epochs = [
            pool.submit(do, "check_epoch", epoch=epoch, phases=phases[epoch])
            for epoch in range(EPOCHS)
        ]
        add("plan", **even.result())
        for epoch in epochs:
            add("plan", way="global_shuffle, each record once", **epoch.result())
    told = {number: own.tolist() for number, own in enumerate(ranges)}
    for rank in np.linspace(0, job.ranks - 1, sample).astype(int).tolist():
        own = [told[rank * job.workers + worker] for worker in range(job.workers)]
        epochs = EPOCHS if rank == 0 else 1
        add(
            "read",
            way="distribute",
            **with_epoch(job, do("read_rank", rank=rank, epochs=epochs, expected=own)),
        )
    expected = {str(number): told[number] for number in old}
    add(
        "read",
        way="distribute, old readers' states",
        **do("change_ranks", rank=0, ranks=after, expected=expected),
    )
    for epoch in range(EPOCHS):
        rank, steps = job.ranks * epoch // EPOCHS, half if epoch == 1 else min(half, 1000)
        row = do("read_shuffled", rank=rank, epoch=epoch, steps=steps)
        state = row.pop("state")
        add("read", way="global_shuffle", **with_epoch(job, row))
        if epoch == 1:
            changed = astuple(replace(job, ranks=after))
            row = do(
                "read_shuffled",
                job=changed,
                rank=after - 1,
                epoch=1,
                steps=min(half, 1000),
                state=state,
            )
            del row["state"]
            add("read", way="global_shuffle, resumed", **row)


def with_epoch(job: Job, row: Mapping[str, Any]) -> dict[str, Any]:
    """What one rank asked for, and what the bucket sees of all in an epoch; GETs a second at 100
    MB/s a rank.
    """
    size = job.shape.offsets[-1] / len(job.shape.lengths)
    gets, seconds = (
        row["gets"] / row["records"] * job.shape.total,
        job.shape.total * size / 1e8 / row["ranks"],
    )
    more = {
        "gets_epoch": gets,
        "dollars_epoch": gets * GET_DOLLARS,
        "gets_a_second": gets / seconds,
    }
    return {**row, **more, "times_the_data": row["sent_mb"] * 1e6 / row["records"] / size}


@contextmanager
def serving(job: Job, faults: Faults) -> Iterator[Job]:
    """The store of a job, in a process of its own."""
    with TemporaryDirectory() as folder, scale_store.serving(job.shape, folder, faults) as url:
        yield replace(job, url=url, folder=folder)


def main() -> None:
    """Simulates, prints, and saves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (
        ("shards", 100_000),
        ("records", 10_000),
        ("ranks", 1024),
        ("after", 768),
        ("workers", 8),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--sample", type=int, default=2, help="how many ranks of distribute really read"
    )
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(**json.loads(arguments.child))))
        return
    unit = int(np.lcm(arguments.ranks, arguments.after))
    shape = Shape(arguments.shards, arguments.records)
    job = Job(shape, "", "", arguments.ranks, arguments.workers, 16 * unit)
    growth = [
        Shape(1000, 1000),
        *(Shape(shards, shape.records) for shards in (1000, 10_000) if shards < shape.shards),
    ]
    began = time.perf_counter()
    rows = simulate(job, growth, arguments.after, arguments.sample, spawned, FAR)
    print(f"{time.perf_counter() - began:.0f} s")
    if arguments.save:
        machine = describe("s3fs", "aiobotocore", "numpy")
        save("scale", {"machine": machine, "seconds": round(time.perf_counter() - began), **rows})


if __name__ == "__main__":
    main()
