"""The tables of the simulation; the package's docstring says what they have."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace

import numpy as np

from benchmarks import scale, stores
from benchmarks.harness import results
from benchmarks.harness.meter import Meter
from benchmarks.harness.process import in_own_process
from benchmarks.harness.program import run
from benchmarks.harness.rounds import significant
from benchmarks.scale import plans, readers
from benchmarks.scale.job import WAYS, Job, Row, serving
from benchmarks.scale.shape import Numbers
from streamrec import bridge
from streamrec.shards import Listing
from tests.servers.faults import Faults

__doc__ = scale.__doc__
EPOCHS = 3
SAMPLE = 2
"""How many ranks of `distribute` really read."""


def main(
    *, shards: int = 100_000, records: int = 10_000, ranks: int = 1024, workers: int = 8
) -> None:
    """Simulates, prints each row when it is known, and saves."""
    job = Job(shards=shards, records=records, ranks=ranks, workers=workers, batch=48 * ranks)
    sizes = [(1000, 1000), *((count, records) for count in (1000, 10_000) if count < shards)]
    tables = defaultdict(list)
    with Meter() as meter:
        for table, row in simulate(job, sizes, stores.FAR):
            rounded = {
                key: significant(value, 4) if isinstance(value, float) else value
                for key, value in row.items()
            }
            tables[table].append(rounded)
            print(json.dumps({"table": table, **rounded}), flush=True)
    print(f"{meter.seconds:.0f} s")
    packages = ["s3fs", "aiobotocore", "numpy"]
    results.save("scale", packages, seconds=round(meter.seconds), **tables)


def simulate(
    job: Job, smaller: Iterable[tuple[int, int]], faults: Faults
) -> Iterator[tuple[str, Row]]:
    """The rows of all tables, each with its table.

    Args:
        job: The data set and who reads it. A multiple of four ranks: three quarters of them are
            left from the middle of an epoch on.
        smaller: Data sets for the table of growth: their shards, and the records of each.
        faults: How far away the store is.
    """
    for shards, records in smaller:
        with serving(replace(job, shards=shards, records=records), faults) as here:
            few = replace(here, ranks=min(64, here.ranks), workers=1)
            yield "growth", {**growth_row(here), **dict(zip(WAYS, starts_of(few, 0), strict=True))}
    with serving(job, faults) as here:
        yield "growth", growth_row(here)
        starts = [
            {"way": way, **cost} for way, cost in zip(WAYS, starts_of(here, 2000), strict=True)
        ]
        yield from (("start", row) for row in starts)
        listing = bridge.run(here.listing)
        plan, ranges = plans.plan_row(here, listing)
        after = replace(here, ranks=here.ranks * 3 // 4)
        yield "plan", plan
        yield from (("plan", row) for row in plan_rows(here, after, listing, ranges))
        yield from (("read", row) for row in read_rows(here, after, ranges))
        yield from (("nodes", row) for row in plans.node_rows(here, listing, starts))


def growth_row(job: Job) -> Row:
    """What the tables of a data set cost."""
    row = {"shards": job.shards, "records": job.shape.total, **readers.write_tables(job)}
    for table in ("plan", "manifest", "index"):
        cost = in_own_process(readers.read_table, job=asdict(job), table=table)
        row |= {f"{table}_{key}": value for key, value in cost.items()}
    return row


def starts_of(job: Job, most: int) -> list[Row]:
    """What a reader needs to start, in each way to name the shards."""
    return [in_own_process(readers.start, job=asdict(job), way=way, most=most) for way in WAYS]


def plan_rows(job: Job, after: Job, listing: Listing, ranges: Sequence[Numbers]) -> Iterator[Row]:
    """The other plans of both numbers of ranks, and three epochs; the ranks change in the middle of
    the second.
    """
    yield plans.plan_row(after, listing)[0]
    yield plans.change_row(job, after, ranges)
    index = job.index()
    for here in (job, after):
        for workers in (1, job.workers):
            yield plans.shuffle_row(replace(here, workers=workers), index)
    yield plans.even_row(job)
    half, steps = job.shape.total // job.batch // 2, -(-job.shape.total // job.batch)
    yield plans.epoch_row(index, 0, [(job, 0, steps)])
    yield plans.epoch_row(index, 1, [(job, 0, half), (after, half, steps)])
    yield plans.epoch_row(index, 2, [(after, 0, steps)])


def read_rows(job: Job, after: Job, ranges: Sequence[Numbers]) -> Iterator[Row]:
    """Some ranks of `distribute` read what they were told, and one new rank the rest of old
    readers; a rank of each epoch of `global_shuffle` reads, and a new rank resumes in the second.
    """
    for rank in np.linspace(0, job.ranks - 1, SAMPLE).astype(int).tolist():
        own = ranges[rank * job.workers : (rank + 1) * job.workers]
        task = {"rank": rank, "epochs": EPOCHS if rank == 0 else 1}
        expected = [worker.tolist() for worker in own]
        row = in_own_process(readers.read_rank, job=asdict(job), expected=expected, **task)
        yield {"way": "distribute", **plans.in_an_epoch(job, row)}
    yield {
        "way": "distribute, old readers' states",
        **readers.change_ranks(job, after, ranges),
    }
    half = job.shape.total // job.batch // 2
    few = min(half, 1000)
    for epoch in range(EPOCHS):
        task = {"rank": job.ranks * epoch // EPOCHS, "epoch": epoch}
        steps = half if epoch == 1 else few
        row = in_own_process(readers.read_shuffled, job=asdict(job), steps=steps, **task)
        state = row.pop("state")
        yield {"way": "global_shuffle", **plans.in_an_epoch(job, row)}
        if epoch == 1:
            task = {"rank": after.ranks - 1, "epoch": 1, "state": state}
            row = in_own_process(readers.read_shuffled, job=asdict(after), steps=few, **task)
            del row["state"]
            yield {"way": "global_shuffle, resumed", **row}


if __name__ == "__main__":
    run(main)
