"""The tables of the simulation; the package's docstring says what they have."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks import scale, stores
from benchmarks.harness import results
from benchmarks.harness.meter import Meter
from benchmarks.harness.process import in_own_process
from benchmarks.harness.program import run
from benchmarks.harness.rounds import significant
from benchmarks.scale import plans, readers
from benchmarks.scale.job import WAYS, Job, serving
from benchmarks.scale.shape import Shape
from streamrec import bridge
from streamrec.shards import Listing
from tests.servers.faults import Faults

__doc__ = scale.__doc__
EPOCHS = 3

Add = Callable[..., None]
Call = Callable[..., dict[str, Any]]


def main(
    *,
    shards: int = 100_000,
    records: int = 10_000,
    ranks: int = 1024,
    after: int = 768,
    workers: int = 8,
    sample: int = 2,
    save: bool = False,
) -> None:
    """Simulates, prints, and saves."""
    unit = int(np.lcm(ranks, after))
    shape = Shape(shards, records)
    job = Job(shape=shape, ranks=ranks, workers=workers, batch=16 * unit)
    smaller = [Shape(count, records) for count in (1000, 10_000) if count < shards]
    with Meter() as meter:
        growth = [Shape(1000, 1000), *smaller]
        tables = Simulation(job, after, sample, stores.FAR).run(growth)
    print(f"{meter.seconds:.0f} s")
    if save:
        packages = ["s3fs", "aiobotocore", "numpy"]
        results.save("scale", packages, seconds=round(meter.seconds), **tables)


class Simulation:
    """All tables of a job.

    Args:
        job: The data set and who reads it.
        after: How many ranks there are from the middle of an epoch on.
        sample: How many ranks of `distribute` really read.
        faults: How far away the store is.
        call: Runs a function of `readers` or `plans`, by default in a process of its own.
    """

    def __init__(
        self, job: Job, after: int, sample: int, faults: Faults, call: Call = in_own_process
    ) -> None:
        self.job = job
        self.after = after
        self.sample = sample
        self.faults = faults
        self.call = call
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def add(self, table: str, **row: Any) -> None:
        """A row, which is printed when it is known."""
        rounded = {
            key: significant(value, 4) if isinstance(value, float) else value
            for key, value in row.items()
        }
        self.rows[table].append(rounded)
        print(json.dumps({"table": table, **rounded}), flush=True)

    def run(self, growth: Sequence[Shape]) -> dict[str, list[dict[str, Any]]]:
        """The table of growth, from the smaller data sets on; then the others."""
        for shape in (*growth, self.job.shape):
            with serving(replace(self.job, shape=shape), self.faults) as here:
                row = self.call(readers.write_tables, job=here.words)
                for table in ("plan", "manifest", "index"):
                    cost = self.call(readers.read_tables, job=here.words, table=table)
                    row |= {f"{table}_{key}": value for key, value in cost.items()}
                if shape != self.job.shape:
                    few = min(64, here.ranks)
                    small = replace(here, ranks=few, workers=1)
                    for way in WAYS:
                        row[way] = self.call(readers.start, job=small.words, way=way, most=0)
                self.add("growth", shards=shape.shards, records=shape.total, **row)
                if shape == self.job.shape:
                    self.run_job(here)
        return dict(self.rows)

    def run_job(self, job: Job) -> None:
        """The tables of the whole job."""
        listing = bridge.run(job.listing)
        for way in WAYS:
            cost = self.call(readers.start, job=job.words, way=way, most=2000)
            self.add("start", way=way, **cost)
        told = self.plan(job, listing)
        self.check_epochs(job)
        self.read(job, told)
        self.read_shuffled(job)
        for nodes in (10, 100, 1000) if job.ranks > 1000 else (1,):
            for row in plans.node_rows(job, nodes, listing, self.rows["start"]):
                self.add("nodes", **row)

    def plan(self, job: Job, listing: Listing) -> list[list[list[int]]]:
        """The plans of both numbers of ranks; returns the ranges of each reader's records."""
        row, ranges = plans.plan_row(job, listing)
        self.add("plan", **row)
        self.add("plan", **plans.plan_row(replace(job, ranks=self.after), listing)[0])
        self.add("plan", **plans.change_row(job, self.after, ranges))
        index = bridge.run(job.index)
        for ranks in (job.ranks, self.after):
            for workers in (1, job.workers):
                here = replace(job, ranks=ranks, workers=workers)
                self.add("plan", **plans.shuffle_row(here, index))
        return [own.tolist() for own in ranges]

    def check_epochs(self, job: Job) -> None:
        """Three epochs; the ranks change in the middle of the second."""
        half, steps = job.shape.total // job.batch // 2, -(-job.shape.total // job.batch)
        before, after = job.ranks, self.after
        phases = ([[before, 0, steps]], [[before, 0, half], [after, half, steps]])
        with ThreadPoolExecutor(2) as pool:
            even = pool.submit(self.call, plans.plan_even, job=job.words)
            check = partial(pool.submit, self.call, plans.check_epoch, job=job.words)
            epochs = [
                check(epoch=epoch, phases=own)
                for epoch, own in enumerate((*phases, [[after, 0, steps]]))
            ]
            self.add("plan", **even.result())
            for epoch in epochs:
                self.add("plan", way="global_shuffle, each record once", **epoch.result())

    def read(self, job: Job, told: list[list[list[int]]]) -> None:
        """Some ranks of `distribute` read what they were told, and one new rank the rest of old
        readers.
        """
        for rank in np.linspace(0, job.ranks - 1, self.sample).astype(int).tolist():
            first = rank * job.workers
            task = {"rank": rank, "epochs": EPOCHS if rank == 0 else 1}
            expected = told[first : first + job.workers]
            row = self.call(readers.read_rank, job=job.words, expected=expected, **task)
            self.add("read", way="distribute", **plans.in_an_epoch(job, row))
        old = {str(number): told[number] for number in range(0, job.readers, self.after)}
        task = {"rank": 0, "ranks": self.after, "expected": old}
        row = self.call(readers.change_ranks, job=job.words, **task)
        self.add("read", way="distribute, old readers' states", **row)

    def read_shuffled(self, job: Job) -> None:
        """A rank of each epoch of `global_shuffle`; in the second, a new rank resumes."""
        half = job.shape.total // job.batch // 2
        for epoch in range(EPOCHS):
            task = {"rank": job.ranks * epoch // EPOCHS, "epoch": epoch}
            steps = half if epoch == 1 else min(half, 1000)
            row = self.call(readers.read_shuffled, job=job.words, steps=steps, **task)
            state = row.pop("state")
            self.add("read", way="global_shuffle", **plans.in_an_epoch(job, row))
            if epoch == 1:
                changed = replace(job, ranks=self.after)
                task = {"rank": self.after - 1, "epoch": 1, "state": state}
                steps = min(half, 1000)
                row = self.call(readers.read_shuffled, job=changed.words, steps=steps, **task)
                del row["state"]
                self.add("read", way="global_shuffle, resumed", **row)


if __name__ == "__main__":
    run(main)
