"""What readers do. Functions that take the words of a job run in a process of their own, so that
their memory is that of one reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.meter import Meter, peak_mb
from benchmarks.scale.job import BATCH, INDEX, MANIFEST, Job, Row, cost_of
from benchmarks.scale.shape import KINDS, PATTERN, Numbers, check, numbers_in, numbers_of
from streamrec import Dataset, bridge
from streamrec.errors import PositionMismatchError
from streamrec.shards import Manifest, assign_records, read_manifest, stat_shard
from streamrec.shards.index import IndexedShard, IndexEncoder
from streamrec.tfrecord import LengthPacker

Words = Mapping[str, Any]


def write_tables(job: Job) -> Row:
    """Writes the manifest and the index."""
    infos = tuple(job.shape.infos())
    manifest_file, index_file = Path(job.folder, "manifest.json"), Path(job.folder, "train.index")
    with Meter() as manifest:
        manifest_file.write_bytes(Manifest(MANIFEST, PATTERN, "", infos).to_json())
    packers = [LengthPacker() for _ in range(KINDS)]
    for kind, packer in enumerate(packers):
        packer.add(job.shape.lengths[: job.shape.counts[kind]])
    lengths = [packer.finish() for packer in packers]
    encoder = IndexEncoder(INDEX, PATTERN)
    with Meter() as index, open(index_file, "wb") as file:
        for shard, info in enumerate(infos):
            file.write(encoder.add(IndexedShard(info, lengths[shard % KINDS])))
        file.write(encoder.finish()[1])
    return {
        "manifest_write_s": manifest.seconds,
        "index_write_s": index.seconds,
        "manifest_mb": manifest_file.stat().st_size / 1e6,
        "index_mb": index_file.stat().st_size / 1e6,
    }


def read_table(job: Words, table: str) -> Row:
    """Lists the shards and plans for all readers; or opens the manifest and plans for one; or opens
    the index.
    """
    here = Job(**job)
    # what is loaded late counts for nothing that comes after
    here.read(stat_shard, MANIFEST)
    plan: Callable[[], Any]
    if table == "index":
        return cost_of(here, here.index)[1]
    if table == "manifest":
        manifest, cost = cost_of(here, partial(here.read, read_manifest, MANIFEST))
        reader = (here.readers, here.readers // 2)
        plan = partial(assign_records, manifest.shards, *reader, "drop", MANIFEST)
    else:
        listing, cost = cost_of(here, partial(bridge.run, here.listing))
        check(len(listing.paths) == here.shape.shards, "a listing has other shards")
        plan = partial(bridge.run, here.plan, listing)
    return {**cost, "plan_s": cost_of(here, plan)[1]["cpu_s"]}


def start(job: Words, way: str, most: int) -> Row:
    """One reader: its first batch, its state, the rest of up to `most` batches, and the first batch
    from the state.
    """
    here = Job(**job)
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
    batches, resumed = cost_of(here, partial(begin, json.loads(state)))
    batches.close()
    again = {f"resume_{key}": resumed[key] for key in ("s", "lists", "heads", "gets", "sent_mb")}
    return {**first, **row, **again}


def take(dataset: Dataset[Any], state: Any = None, most: int | None = None) -> tuple[Numbers, Any]:
    """The numbers of the records in a reader's batches, at most so many from the start or from a
    state; and the state after them, as a file would hold it.
    """
    with closing(dataset.iterate(state)) as batches:
        numbers = numbers_in(islice(batches, most))
        return numbers, json.loads(json.dumps(batches.state_dict()))


def read_rank(job: Words, rank: int, epochs: int, expected: list[list[list[int]]]) -> Row:
    """One rank of `distribute`: all its workers, in turn, and some epochs; they must get what their
    plans say.
    """
    here = Job(**job)
    dataset = here.dataset("glob")  # all its workers share one listing

    def read() -> int:
        records = 0
        for epoch, (worker, ranges) in product(range(epochs), enumerate(expected)):
            number = rank * here.workers + worker
            own = dataset.with_options(rank=number, world_size=here.readers, epoch=epoch)
            numbers, _ = take(own)
            fine = np.array_equal(np.sort(numbers), numbers_of(ranges))
            check(fine, f"worker {worker} of rank {rank} read others")
            records += len(numbers)
        return records

    records, cost = cost_of(here, read)
    return {"rank": rank, "ranks": here.ranks, "records": records, **cost}


def change_ranks(job: Job, after: Job, ranges: Sequence[Numbers]) -> Row:
    """The first of the new ranks reads the rest of some old readers, each of which had read half,
    with the state of each.
    """
    records, refused = 0, ""
    dataset = job.dataset("glob")
    old_readers = range(0, job.readers, after.ranks)
    for number in old_readers:
        wanted = numbers_of(ranges[number])
        old = dataset.with_options(rank=number, world_size=job.readers)
        first, state = take(old, most=len(wanted) // BATCH // 2)
        rest, _ = take(old, state)
        both = np.sort(np.concatenate([first, rest]))
        check(np.array_equal(both, wanted), f"reader {number} repeats or skips")
        records += len(rest)
        try:
            take(dataset.with_options(rank=0, world_size=after.readers), state, most=1)
        except PositionMismatchError as error:
            refused = str(error)
    check(refused, "distribute took the state of another number of readers")
    row = {"rank": 0, "ranks": after.ranks, "old_readers": len(old_readers)}
    return {**row, "records": records, "refused": refused}


def read_shuffled(job: Words, rank: int, epoch: int, steps: int, state: Any = None) -> Row:
    """One rank of `global_shuffle`: so many steps, from the start or from a state; they must be
    those of the order.
    """
    here = Job(**job)
    dataset = here.dataset("glob, index").with_options(
        rank=rank, world_size=here.ranks, epoch=epoch
    )
    (numbers, after), cost = cost_of(here, partial(take, dataset, state, steps))
    base = 0 if state is None else state["position"]["source"]["position"]
    taken = here.steps(rank, base=base)
    positions = np.concatenate([taken.positions(step) for step in range(steps)])
    order = here.order(here.index(), epoch)
    fine = np.array_equal(numbers, order.records(positions))
    check(fine, f"rank {rank} of {here.ranks} read others")
    row = {"rank": rank, "ranks": here.ranks, "epoch": epoch, "records": len(numbers)}
    return {**row, **cost, "state": after}
