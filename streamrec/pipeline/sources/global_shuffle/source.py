"""GlobalShuffle: all records of a data set in an order of seed, epoch and index, for any number of ranks and workers.

Rules:
- Who reads is looked up where and when the pipeline runs, as `distribute` does.
- A state is the position at which the next global batch begins, and the digest of the index: the same on all ranks. Any
  number of ranks can go on there. Only where a rank has several loader workers, each has a state of its own, which says
  where all of them began; the least of their positions is that of the job.
- Positions of a step are taken in order of the rank's slots. Steps that are filled up are fetched record by record.
- Of blocks, a rank reads those of its own groups alone. Each of its loader workers reads all of these.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import gcd
from typing import Any, ClassVar

import numpy as np

from streamrec.display import display_name
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.chunk import Batches, Chunk
from streamrec.pipeline.elements.positions import Position, Positions, RecordPlace
from streamrec.pipeline.engine.description import RunContext, Source, derived
from streamrec.pipeline.engine.epochs import SEED_BITS, Memo
from streamrec.pipeline.engine.queue import background
from streamrec.pipeline.engine.ranks import Rank, Reader, rank_here, warn_once, warn_uneven, worker_here
from streamrec.pipeline.engine.session import Session
from streamrec.pipeline.sources.global_shuffle.blocks import BLOCK_BYTES, WINDOW_BYTES, Numbers, Quality, blocks_of
from streamrec.pipeline.sources.global_shuffle.opening import IndexedRecords, index_of, opened
from streamrec.pipeline.sources.global_shuffle.order import BlockOrder, ExactOrder, groups_for
from streamrec.pipeline.sources.global_shuffle.reading import BlockReading, ExactReading
from streamrec.pipeline.sources.global_shuffle.steps import Steps
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.shards import Even, check_even

__all__ = ["GlobalShuffle"]

EXACT_BYTES = 64 << 10
"""Where records are so large on average, and nobody said how they are shuffled, it is exactly."""

BLOCKS_CHUNK_BYTES = 16 << 20
"""About how much is gathered of blocks at a time: each time costs something for each group."""

EXACT_CHUNK_BYTES = 8 << 20
"""The same of an exact order: of more of a small data set, the gaps that are read are too many."""

AHEAD_BLOCKS = 24
"""So many blocks are fetched ahead at the most: what fills the wire."""

CHUNK_SHARE = 8
"""No more than this part of the budget."""


@dataclass(frozen=True, slots=True)
class GlobalShuffle(Source):
    """All records that an index knows, in random order, or a rank's share of each global batch of them.

    Args:
        shards: Where they lie.
        seed: Which order.
        index: The URL of the index.
        batch: The global batch size; None for single records.
        even, quality, block_bytes, window_bytes, slot_groups: See `Dataset.global_shuffle`.
        rank: Which rank reads; None to look where the pipeline runs.
    """

    shards: Shards
    seed: int
    index: str
    batch: int | None = None
    even: Even | None = None
    quality: Quality | None = None
    block_bytes: int = BLOCK_BYTES
    window_bytes: int = WINDOW_BYTES
    slot_groups: int | None = None
    rank: Rank | None = None
    memo: Memo = field(default_factory=Memo, init=False, compare=False, repr=False)
    is_assigned: ClassVar[bool] = True

    def lines(self) -> Iterator[str]:
        yield from self.shards.lines()
        yield (
            f"GlobalShuffle(seed={self.seed}, batch={self.batch}, even={self.even!r}, quality={self.quality!r}, "
            f"block_bytes={self.block_bytes}, window_bytes={self.window_bytes}, slot_groups={self.slot_groups})"
        )

    @property
    def shared_seed(self) -> int:
        """What chance elsewhere in the pipeline comes from where no seed was given: the same on all ranks."""
        return derived(self.seed) >> (64 - SEED_BITS)

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        source = await within.session.open(self, self.shards.stores, 0, self.shards.filenames, self.memo)
        records = await opened(source, self.index, self.shards.options, self.memo)
        rank = self.rank or within.rank or rank_here()
        steps = resumed(self._steps(len(records), rank), state, records.digest)
        first = steps.next_own(0 if state is None else (state["position"] - steps.base) // steps.batch)
        step_bytes = max(1, int(steps.share * records.mean_bytes))
        plan = Plan(steps, first, max(1, self._chunk_bytes(records, within) // step_bytes))
        self._warn_empty(steps, records)
        place_of = partial(self._place, records, within.epoch)
        async with background() as tasks:
            reading = self._reading(plan, records, tasks, within)
            for step, positions in plan.runs():
                whole = step < steps.whole
                if whole or steps.even is None:
                    frames = await reading.take(positions.ravel())
                else:
                    frames = await records.some(self._order(records, within.epoch).records(positions.ravel()))
                elements = frames if self.batch is None else Batches(frames, positions.shape[1])
                yield Chunk.weighed(elements, StepPositions(steps, step, records.digest, place_of))

    async def count(self, session: Session, rank: Rank | None) -> int:
        """How many elements this reader gives: records, or its parts of global batches.

        Args:
            session: Opens the stores.
            rank: Which rank reads; None to look.
        """
        source = await self.shards.listed(session)
        index = await index_of(source, self.index, self.memo)
        steps = self._steps(len(index), self.rank or rank or rank_here())
        return steps.elements if self.batch is None else steps.batches

    def _steps(self, total: int, rank: Rank) -> Steps:
        """The steps of this reader from the start.

        Raises:
            ValueError: The ranks cannot share a global batch evenly.
        """
        batch = rank.world_size if self.batch is None else self.batch
        if batch % rank.world_size:
            raise ValueError(
                f"global_batch_size={batch} cannot be divided by {rank.world_size} ranks: choose a multiple of each "
                "number of ranks that the job will run with"
            )
        worker, workers = worker_here()
        return Steps(total, batch, self.even, rank.rank, rank.world_size, worker, workers)

    def _warn_empty(self, steps: Steps, records: IndexedRecords) -> None:
        """Says which readers have no position; each works out what all have."""
        if steps.whole >= steps.workers:
            return
        each = [(rank, worker) for rank in range(steps.world_size) for worker in range(steps.workers)]
        loads = [replace(steps, rank=rank, worker=worker).elements for rank, worker in each]
        reader = Reader(steps.rank * steps.workers + steps.worker, len(each))
        if steps.total and not any(loads):
            warn_once(
                f"even={self.even!r} leaves nothing of {len(records):,} records for a global batch of {steps.batch:,}: "
                "pass even='pad', or a smaller global_batch_size"
            )
        what, remedy = (
            f"the {len(records):,} records of {display_name(self.index)}",
            "Pass even='pad' to global_shuffle",
        )
        warn_uneven(reader, loads, what, remedy)

    def _is_exact(self, records: IndexedRecords) -> bool:
        return records.mean_bytes >= EXACT_BYTES if self.quality is None else self.quality == "exact"

    def _order(self, records: IndexedRecords, epoch: int) -> BlockOrder | ExactOrder:
        """The order of an epoch."""
        if self._is_exact(records):
            return ExactOrder(len(records), self.seed, epoch)
        groups = self.slot_groups or groups_for(self.batch or MANY)
        window = max(1, self.window_bytes // self.block_bytes // groups)
        blocks = blocks_of(records.counts, records.sizes, self.block_bytes)
        return BlockOrder(blocks, self.seed, epoch, self.batch or groups, groups, window)

    def _place(self, records: IndexedRecords, epoch: int, position: int) -> RecordPlace:
        """Where the record lies that is at a position of an epoch's order."""
        (number,) = self._order(records, epoch).records(np.array([position])).tolist()
        firsts = records.index.first_records
        shard = int(np.searchsorted(firsts, number, side="right")) - 1
        return RecordPlace(records.index.shards[shard].path, number - int(firsts[shard]))

    def _reading(
        self, plan: Plan, records: IndexedRecords, tasks: Any, within: RunContext
    ) -> BlockReading | ExactReading:
        """What reads this reader's records.

        Raises:
            ValueError: The memory budget does not hold its windows.
        """
        order, limit = self._order(records, within.epoch), within.budget - 2 * self._chunk_bytes(records, within)
        if isinstance(order, ExactOrder):
            runs = (positions.ravel() for step, positions in plan.natural())
            return ExactReading(order, records, runs, tasks, records.mean_bytes, limit)
        groups = plan.groups(order)
        needed = len(groups) * order.window * self.block_bytes
        if min(needed, records.nbytes) > limit:
            raise ValueError(
                f"the windows of {len(groups)} groups that this rank reads need {needed:,} bytes, and {limit:,} of the "
                "memory budget are left for them: pass a larger with_options(memory_budget=...), or a smaller "
                "window_bytes, which changes the order"
            )
        most = needed + AHEAD_BLOCKS * self.block_bytes
        return BlockReading(order, records, groups, tasks, records.mean_bytes, min(limit, most), within.session.threads)

    def checked(self) -> GlobalShuffle:
        """The same.

        Raises:
            ValueError: An argument is none of those that are known, or groups do not divide the global batch size.
        """
        check_even(self.even)
        if self.quality not in (None, "exact", "blocks"):
            raise ValueError(f"quality={self.quality!r} must be 'exact', 'blocks' or None")
        if self.slot_groups is not None and (self.batch or self.slot_groups) % self.slot_groups:
            raise ValueError(f"slot_groups={self.slot_groups} must divide global_batch_size={self.batch}")
        if self.shards.options.compression_type:
            raise ValueError(
                f"compression_type={self.shards.options.compression_type!r}: records of compressed shards cannot be "
                "read by number; write them without compression: streamrec reshard"
            )
        return self

    def _chunk_bytes(self, records: IndexedRecords, within: RunContext) -> int:
        most = EXACT_CHUNK_BYTES if self._is_exact(records) else BLOCKS_CHUNK_BYTES
        return max(1, min(most, within.budget // CHUNK_SHARE))


MANY = 24
"""Positions that are dealt to groups at a time where there is no global batch."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a reader takes, from one step on.

    Args:
        steps: Its steps.
        first: The first of them that it takes.
        many: How many it takes at a time.
    """

    steps: Steps
    first: int
    many: int

    def runs(self) -> Iterator[tuple[int, Numbers]]:
        """Of so many steps at a time the number of the first, and their positions: int64 [steps, slots]."""
        steps, step = self.steps, self.first
        while step < steps.count:
            positions = steps.run(step, self.many) if step < steps.whole else steps.positions(step)[None, :]
            if positions.size:
                yield step, positions
            step += len(positions) * steps.workers

    def natural(self) -> Iterator[tuple[int, Numbers]]:
        """The same without a step that is filled up."""
        for step, positions in self.runs():
            if step < self.steps.whole or self.steps.even is None:
                yield step, positions

    def groups(self, order: BlockOrder) -> dict[int, int]:
        """The groups that it reads, and the number of the first record that it takes of each."""
        steps = self.steps
        if self.first >= steps.count:
            return {}
        many = order.unit // gcd(order.unit, steps.batch * steps.workers)
        ahead = self.first + np.arange(many) * steps.workers
        positions = (steps.position(0) + ahead[:, None] * steps.batch + steps.slots).ravel()
        groups, indices = order.locate(positions[positions < steps.total])
        return {int(group): int(indices[groups == group].min()) for group in np.unique(groups)}


@dataclass(frozen=True, slots=True)
class StepPositions(Positions):
    """Positions of elements of which each is a step.

    Args:
        steps: Whose they are.
        first: The first one's.
        digest: The index's.
        place_of: Where the record lies that is at a position.
    """

    steps: Steps
    first: int
    digest: str
    place_of: Callable[[int], RecordPlace]

    def made_of(self, index: int, row: int) -> Sequence[RecordPlace]:
        positions = self.steps.positions(self.first + index * self.steps.workers)
        return (self.place_of(int(positions[row])),) if row < len(positions) else ()

    def at(self, index: int) -> Position:
        steps = self.steps
        state: dict[str, Any] = {
            "position": steps.position(self.first + index * steps.workers),
            "index": self.digest,
        }
        if steps.workers > 1:
            state |= {"began": steps.base, "batch": steps.batch, "worker": [steps.worker, steps.workers]}
        return {"source": state}


def resumed(steps: Steps, state: Mapping[str, Any] | None, digest: str) -> Steps:
    """A reader's steps from where a state stands.

    Raises:
        PositionMismatchError: It was saved with another index, or by another loader worker.
    """
    if state is None:
        return steps
    if state["index"] != digest:
        raise PositionMismatchError(
            f"this state was saved with an index of digest {state['index']}, and this one has {digest}: the data set "
            "is another, or was changed; resume with the index that it was saved with, or start anew without the state"
        )
    whose = state.get("worker")
    if whose is None:
        return replace(steps, base=int(state["position"]))
    if whose != [steps.worker, steps.workers]:
        raise PositionMismatchError(
            f"this state is that of loader worker {whose[0]} of {whose[1]}, and this is {steps.worker} of "
            f"{steps.workers}: streamrec.torch.job_state(loader.state_dict()) makes of the states of all workers one "
            "that any number of ranks and workers can resume from"
        )
    return replace(steps, base=int(state["began"]))
