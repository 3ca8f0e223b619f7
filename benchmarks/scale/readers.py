"""What readers do, each in a process of its own: the functions take a job's words, and return a
row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.harness.meter import Meter, peak_mb
from benchmarks.scale.job import (
    BATCH,
    INDEX,
    MANIFEST,
    Job,
    check,
    cost_of,
    numbers_in,
    numbers_of,
)
from benchmarks.scale.shape import KINDS, Numbers
from streamrec import bridge
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.sources.global_shuffle.steps import Steps
from streamrec.shards import Manifest, assign_records
from streamrec.shards.index import IndexedShard, IndexEncoder
from streamrec.tfrecord import LengthPacker

Row = dict[str, Any]
Words = Mapping[str, Any]


def write_tables(job: Words) -> Row:
    """Writes the manifest and the index."""
    here = Job.of(job)
    infos, folder = tuple(here.shape.infos()), Path(here.folder)
    pattern = "s3://bucket/train-{shard:06d}.tfrecord"
    with Meter() as manifest:
        (folder / "manifest.json").write_bytes(Manifest(MANIFEST, pattern, "", infos).to_json())
    packers = [LengthPacker() for _ in range(KINDS)]
    for kind, packer in enumerate(packers):
        packer.add(here.shape.lengths[: here.shape.counts[kind]])
    lengths, encoder = [packer.finish() for packer in packers], IndexEncoder(INDEX, pattern)
    with Meter() as index, open(folder / "train.index", "wb") as file:
        for shard, info in enumerate(infos):
            file.write(encoder.add(IndexedShard(info, lengths[shard % KINDS])))
        file.write(encoder.finish()[1])
    row = {"manifest_write_s": manifest.seconds, "index_write_s": index.seconds}
    for name, table in (("manifest", "manifest.json"), ("index", "train.index")):
        row[f"{name}_mb"] = (folder / table).stat().st_size / 1e6
    return row


def read_tables(job: Words, table: str) -> Row:
    """Lists the shards and plans for all readers; or opens the manifest and plans for one; or opens
    the index.
    """
    here = Job.of(job)
    bridge.run(here.warm_up)
    if table == "index":
        return cost_of(here, lambda: bridge.run(here.index))[1]
    plan: Callable[[], Any]
    if table == "manifest":
        manifest, cost = cost_of(here, lambda: bridge.run(here.manifest))
        reader = (here.readers, here.readers // 2)
        plan = partial(assign_records, manifest.shards, *reader, "drop", MANIFEST)
    else:
        listing, cost = cost_of(here, lambda: bridge.run(here.listing))
        check(len(listing.paths) == here.shape.shards, "a listing has other shards")
        plan = partial(bridge.run, here.plan, listing)
    return {**cost, "plan_s": cost_of(here, plan)[1]["cpu_s"]}


def start(job: Words, way: str, most: int) -> Row:
    """One reader: its first batch, its state, the rest of up to `most` batches, and the first batch
    from the state.
    """
    here = Job.of(job)
    size = here.ranks if "index" in way else here.readers
    dataset = here.dataset(way).with_options(rank=size // 2, world_size=size)

    def begin(state: Any = None) -> Any:
        batches = dataset.iterate(state)
        next(batches)
        return batches

    before = peak_mb()
    batches, first = cost_of(here, begin)
    with closing(batches):
        with Meter() as saving:
            state = json.dumps(batches.state_dict())
        for _ in islice(batches, most):
            pass
    row = {"state_bytes": len(state), "state_ms": saving.seconds * 1e3}
    row["peak_mb"] = peak_mb() - before
    batches, resumed = cost_of(here, lambda: begin(json.loads(state)))
    batches.close()
    again = {f"resume_{key}": resumed[key] for key in ("s", "lists", "heads", "gets", "sent_mb")}
    return {**first, **row, **again}


@contextmanager
def as_worker(worker: int, workers: int) -> Iterator[None]:
    """Within it, this process is a loader worker of torch."""
    info = SimpleNamespace(id=worker, num_workers=workers)
    torch = SimpleNamespace(get_worker_info=lambda: info)
    with patch.dict(sys.modules, {"torch.utils.data": torch}):
        yield


def read_rank(job: Words, rank: int, epochs: int, expected: list[list[list[int]]]) -> Row:
    """One rank of `distribute`: all its workers, in turn, and some epochs; they must get what their
    plans say.
    """
    here = Job.of(job)
    dataset = here.dataset("glob").with_options(rank=rank, world_size=here.ranks)

    def read() -> int:
        records = 0
        for epoch in range(epochs):
            for worker, ranges in enumerate(expected):
                with as_worker(worker, here.workers):
                    numbers = np.sort(numbers_in(dataset.with_options(epoch=epoch)))
                fine = np.array_equal(numbers, numbers_of(ranges))
                check(fine, f"worker {worker} of rank {rank} read others")
                records += len(numbers)
        return records

    records, cost = cost_of(here, read)
    return {"rank": rank, "ranks": here.ranks, "records": records, **cost}


def change_ranks(job: Words, rank: int, ranks: int, expected: Mapping[str, Any]) -> Row:
    """A new rank reads the rest of some old readers, each of which had read half, with the state of
    each.
    """
    here = Job.of(job)
    dataset, records, refused = here.dataset("glob"), 0, ""
    for number, ranges in expected.items():
        old = dataset.with_options(rank=int(number), world_size=here.readers)
        wanted = numbers_of(ranges)
        with closing(old.iterate()) as batches:
            first = numbers_in(islice(batches, len(wanted) // BATCH // 2))
            state = json.loads(json.dumps(batches.state_dict()))
        rest = numbers_in(old.iterate(state))
        both = np.sort(np.concatenate([first, rest]))
        check(np.array_equal(both, wanted), f"reader {number} repeats or skips")
        records += len(rest)
        try:
            next(dataset.with_options(rank=rank, world_size=ranks * here.workers).iterate(state))
        except PositionMismatchError as error:
            refused = str(error)
    check(bool(refused), "distribute took the state of another number of readers")
    row = {"rank": rank, "ranks": ranks, "old_readers": len(expected)}
    return {**row, "records": records, "refused": refused}


def read_shuffled(job: Words, rank: int, epoch: int, steps: int, state: Any = None) -> Row:
    """One rank of `global_shuffle`: so many steps, from the start or from a state; they must be
    those of the order.
    """
    here = Job.of(job)
    dataset = here.dataset("glob, index").with_options(
        rank=rank, world_size=here.ranks, epoch=epoch
    )

    def read() -> tuple[Numbers, Any]:
        with closing(dataset.iterate(state)) as batches:
            return numbers_in(islice(batches, steps)), batches.state_dict()

    (numbers, after), cost = cost_of(here, read)
    base = 0 if state is None else state["position"]["source"]["position"]
    own = Steps(
        total=here.shape.total, batch=here.batch, rank=rank, world_size=here.ranks, base=base
    )
    positions = np.concatenate([own.positions(step) for step in range(steps)])
    order = here.order(bridge.run(here.index), epoch)
    fine = np.array_equal(numbers, order.records(positions))
    check(fine, f"rank {rank} of {here.ranks} read others")
    row = {"rank": rank, "ranks": here.ranks, "epoch": epoch, "records": len(numbers)}
    return {**row, **cost, "state": after}
