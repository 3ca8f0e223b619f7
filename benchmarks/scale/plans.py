"""The plans of all readers, made by the library, and what they mean for a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness.meter import Meter
from benchmarks.scale.job import BATCH, MANIFEST, Job, Row
from benchmarks.scale.shape import Numbers, check, check_each_once, numbers_of
from streamrec import bridge
from streamrec.pipeline.sources.global_shuffle.lane_reading import own_cells
from streamrec.pipeline.sources.global_shuffle.lanes import Lane, LaneOrder
from streamrec.shards import Index, Listing, assign_records, read_manifest

EVERY = 64
GET_DOLLARS = 0.0004 / 1000
LIST_DOLLARS = 0.005 / 1000
GETS_A_SECOND = 5500


def sizes(ranges: Sequence[Numbers]) -> Numbers:
    """How many records each of several readers has."""
    return np.array([int((own[:, 1] - own[:, 0]).sum()) for own in ranges])


def balance(loads: npt.NDArray[Any]) -> float:
    """The largest load, of the mean."""
    return float(loads.max() / loads.mean())


def plan_row(job: Job, listing: Listing) -> tuple[Row, list[Numbers]]:
    """The plan of all readers of `distribute`, and the records of each."""
    with Meter() as meter:
        plan = bridge.run(job.plan, listing)
    ranges = [job.shape.ranges(own) for own in plan]
    # the epoch has no part in the plan, so this holds for each
    check_each_once(np.concatenate(ranges), job.shape.total, f"{job.readers} readers")
    loads = sizes(ranges)
    return {
        "way": "distribute",
        "ranks": job.ranks,
        "workers": job.workers,
        "cpu_s": meter.cpu_seconds,
        "cut": sum(portion.byte_range is not None for own in plan for portion in own),
        "balance_reader": balance(loads),
        "balance_rank": balance(loads.reshape(job.ranks, -1).sum(1)),
    }, ranges


def change_row(job: Job, after: Job, ranges: Sequence[Numbers]) -> Row:
    """New ranks take over old readers, of which each has read half: how long the rest takes."""
    records = sizes(ranges)
    rest = records - records // BATCH // 2 * BATCH
    loads = np.array([rest[rank :: after.ranks].sum() for rank in range(after.ranks)])
    check(loads.sum() == rest.sum(), "a reader's rest is lost")
    return {
        "way": "distribute, old readers' states",
        "ranks": after.ranks,
        "balance_rank": balance(loads),
        "repeated": 0,
        "repeated_by_restart": job.shape.total - int(rest.sum()),
    }


def even_row(job: Job) -> Row:
    """The plans of all ranks of `distribute(even="drop")`, each of which has one reader."""
    shards = job.read(read_manifest, MANIFEST).shards
    ranks = range(job.ranks)
    with Meter() as meter:
        plans = [assign_records(shards, job.ranks, rank, "drop", MANIFEST) for rank in ranks]
    each, left_out = divmod(job.shape.total, job.ranks)
    ranges = [job.shape.ranges(own) for own in plans]
    check_each_once(np.concatenate(ranges), each * job.ranks, "even='drop'")
    check((sizes(ranges) == each).all(), "even='drop' is uneven")
    row = {"way": "even='drop'", "ranks": job.ranks, "workers": 1}
    return {**row, "cpu_s": meter.cpu_seconds / job.ranks, "left_out": left_out}


def shuffle_row(job: Job, index: Index) -> Row:
    """What all ranks of a global shuffle ask for in an epoch: from the cells of one rank in EVERY,
    and the ranges in some blocks of each of its lanes.
    """
    order = job.order(index, 0)
    ranks = range(0, job.ranks, EVERY)
    gets, records = np.zeros(len(ranks)), np.zeros(len(ranks))
    for (at, rank), worker in product(enumerate(ranks), range(job.workers)):
        steps = job.steps(rank, worker=worker, workers=job.workers)
        for own in own_cells(order, steps, steps.next_own(0)).values():
            counts = own.lane.parts.counts
            parts = range(0, len(counts), max(1, len(counts) // 16))
            found = [own.ranges(part) for part in parts]
            records[at] += sizes(found).sum() / counts[list(parts)].sum() * counts.sum()
            gets[at] += sum(map(len, found)) / len(parts) * len(counts)
    every = job.ranks / len(ranks)
    return {
        "way": "global_shuffle",
        "ranks": job.ranks,
        "workers": job.workers,
        "gets": float(gets.sum() * every),
        "times_the_data": float(records.sum() * every / len(index)),
        "balance_rank": balance(records),
    }


def epoch_row(index: Index, epoch: int, phases: Sequence[tuple[Job, int, int]]) -> Row:
    """An epoch of `global_shuffle`: each record has one position, and one reader takes each
    position.

    Args:
        index: The index.
        epoch: Which epoch.
        phases: Jobs, and of each the step at which it begins and the one at which it stops.
    """
    job = phases[0][0]
    with Meter() as meter:
        check_order(job, job.order(index, epoch), epoch)
        taken = np.concatenate([positions_of(*phase) for phase in phases])
        check_each_once(taken, job.shape.total, "the positions of all readers")
    row = {"way": "global_shuffle, each record once", "epoch": epoch}
    return {**row, "ranks": [phase[0].ranks for phase in phases], "s": meter.seconds}


def check_order(job: Job, order: LaneOrder, epoch: int) -> None:
    """Of all lanes, the parts must hold each record once; of one lane, the order must hold each
    record of its parts.
    """
    parts = [order.lane(number).parts for number in range(order.lanes.count)]
    ranges = [np.stack([own.starts, own.starts + own.counts], 1) for own in parts]
    check_each_once(np.concatenate(ranges), job.shape.total, "the parts of an order")
    records = np.sort(sequence(order.lane(epoch)))
    fine = np.array_equal(records, np.sort(numbers_of(ranges[epoch])))
    check(fine, "a lane has others than its parts")


def sequence(lane: Lane) -> Numbers:
    """The records of a lane, in order."""
    found = [np.empty(0, np.int64)]
    for part, (first, last) in enumerate(pairwise(lane.before.tolist())):
        offsets = lane.offsets(part, lane.cells(part), np.arange(first, last))
        found.append(lane.parts.starts[part] + offsets)
    return np.concatenate(found)


def positions_of(job: Job, first: int, last: int) -> Numbers:
    """The ranges of positions that all readers take in the steps from `first` to `last`."""
    taken = []
    for rank, worker in product(range(job.ranks), range(job.workers)):
        own = job.steps(rank, worker=worker, workers=job.workers, base=first * job.batch)
        for step, positions in own.runs(own.next_own(0), 1 << 12):
            rows = positions[: len(range(step, last - first, job.workers))]
            check((np.diff(rows[:1]) == 1).all(), "a rank's slots do not follow each other")
            taken.append(np.stack([rows[:, 0], rows[:, -1] + 1], 1))
    return np.concatenate(taken)


def node_rows(job: Job, listing: Listing, starts: Sequence[Row]) -> Iterator[Row]:
    """What a bucket sees of 10, 100 and 1,000 nodes of 8 ranks, in each way to start."""
    for nodes, workers in product((10, 100, 1000) if job.ranks > 1000 else (1,), (1, job.workers)):
        here = replace(job, ranks=8 * nodes, workers=workers)
        row = {**plan_row(here, listing)[0], "nodes": nodes}
        for cost in starts:
            readers = here.ranks if "index" in cost["way"] else here.readers
            gets, lists = readers * (cost["gets"] + cost["heads"]), readers * cost["lists"]
            row[cost["way"]] = {
                "requests": gets + lists,
                "s_at_rate": (gets + lists) / GETS_A_SECOND,
                "dollars": gets * GET_DOLLARS + lists * LIST_DOLLARS,
            }
        yield row


def in_an_epoch(job: Job, row: Row) -> Row:
    """What one rank asked for, and what the bucket sees of all in an epoch; GETs a second at 100
    MB/s a rank.
    """
    size = job.shape.offsets[-1] / len(job.shape.lengths)
    gets = row["gets"] / row["records"] * job.shape.total
    seconds = job.shape.total * size / 1e8 / row["ranks"]
    return {
        **row,
        "gets_epoch": gets,
        "dollars_epoch": gets * GET_DOLLARS,
        "gets_a_second": gets / seconds,
        "times_the_data": row["sent_mb"] * 1e6 / row["records"] / size,
    }
