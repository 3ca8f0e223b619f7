"""GlobalShuffle: all records of a data set in an order of seed, epoch and index.

Any number of ranks and workers share the order.

Rules:
- The rank and worker are looked up where and when the pipeline runs, as in `distribute`.
- A state is the position at which the next global batch begins, and the digest of the index. It is
  the same on all ranks, and any number of ranks can resume there. If a rank has several loader
  workers, each has its own state, which says where all of them began; the job's position is the
  smallest of theirs.
- In a `repeat`, the workers of a rank go on in turn from one pass to the next (`Passes`): so they
  are at the same step of the job, whatever the number of steps in a pass.
- Positions of a step are taken in the order of the rank's slots. Steps that are filled up are
  fetched record by record.
- Blocks are ordered in lanes (`lanes.py`), of which each reader reads only its own records. A state
  says so. A state without that, of an earlier release, and a shuffle with `slot_groups` or
  `window_bytes` have the order of groups (`order.py`): each worker reads all blocks of its rank's
  groups.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from anyio.abc import TaskGroup

from streamrec.arguments import at_least_one, check_choice, check_fields, check_integer, check_named
from streamrec.display import display_name, logger, warn_once
from streamrec.errors import ManifestError, PositionMismatchError
from streamrec.pipeline.elements.chunk import Batches, Chunk
from streamrec.pipeline.elements.positions import NumberedPositions, RecordLocation
from streamrec.pipeline.engine.passes import Passes
from streamrec.pipeline.engine.ranks import (
    Rank,
    Reader,
    log_reader,
    rank_here,
    warn_uneven,
    worker_here,
)
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.seeds import SEED_BITS, derive_seed
from streamrec.pipeline.engine.session import Memo, OpenSource, Session
from streamrec.pipeline.engine.threads import Threads
from streamrec.pipeline.engine.versions import SavedVersions, ShardVersions
from streamrec.pipeline.sources.global_shuffle import BLOCK_BYTES, WINDOW_BYTES, Quality
from streamrec.pipeline.sources.global_shuffle.job_state import is_past_common
from streamrec.pipeline.sources.global_shuffle.lane_reading import LaneReading, own_cells
from streamrec.pipeline.sources.global_shuffle.lanes import (
    CLASSES,
    CLASSES_OF_RECORDS,
    LaneOrder,
    Lanes,
    lane_block_bytes,
    reading_workers,
    times_read,
)
from streamrec.pipeline.sources.global_shuffle.order import (
    BlockOrder,
    ExactOrder,
    Numbers,
    cut_blocks,
    groups_for,
)
from streamrec.pipeline.sources.global_shuffle.reading import BlockReading, mean_bytes, read_exact
from streamrec.pipeline.sources.global_shuffle.steps import Steps
from streamrec.pipeline.sources.shards.distribute import AssignedSource, complete
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.shards import Even, Index, IndexedRecords, check_even, location_of, open_index
from streamrec.storage.tasks import background
from streamrec.tfrecord import Frames

EXACT_BYTES: Final = 64 << 10
"""Records of at least this mean size are shuffled exactly by default."""

BLOCKS_CHUNK_BYTES: Final = 16 << 20
"""About how many bytes of blocks make a chunk: each chunk costs time for each group."""

LANES_ORDER: Final = 2
"""What a state says of blocks in lanes. Earlier releases had another order, and said nothing."""

EXACT_CHUNK_BYTES: Final = 8 << 20
"""About how many bytes of an exact order make a chunk.

Larger chunks of a small data set read too many gaps.
"""

WHOLE_BYTES: Final = 32 << 20
"""Packed lengths up to this size are read at once when a run begins.

It is the size for about 16 million records.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalShuffle(AssignedSource):
    """Gives all records of an index in random order, or a rank's share.

    See `Dataset.global_shuffle`.
    """

    shards: Shards
    seed: int
    index: str
    batch: int | None = None
    even: Even | None = None
    quality: Quality | None = None
    block_bytes: int = BLOCK_BYTES
    window_bytes: int | None = None
    slot_groups: int | None = None
    rank: Rank | None = None
    memo: Memo = field(default_factory=Memo, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        size_or_none = partial(check_integer, least=1, none=True)
        check_fields(
            self,
            seed=check_integer,
            batch=check_named("global_batch_size", size_or_none),
            block_bytes=at_least_one,
            window_bytes=size_or_none,
            slot_groups=size_or_none,
        )
        check_even(self.even)
        check_choice("quality", self.quality, ("exact", "blocks", None))
        if self.slot_groups is not None and (self.batch or self.slot_groups) % self.slot_groups:
            raise ValueError(
                f"slot_groups={self.slot_groups} must divide global_batch_size={self.batch}"
            )
        if self.shards.options.compression_type:
            raise ValueError(
                f"compression_type={self.shards.options.compression_type!r}: records of "
                "compressed shards cannot be read by number; write them without compression: "
                "streamrec reshard"
            )

    def lines(self) -> Iterator[str]:
        # A state holds a digest of this text: it keeps the defaults of earlier releases.
        yield from self.shards.lines()
        yield (
            f"GlobalShuffle(seed={self.seed}, batch={self.batch}, even={self.even!r}, "
            f"quality={self.quality!r}, block_bytes={self.block_bytes}, "
            f"window_bytes={self.window_bytes or WINDOW_BYTES}, slot_groups={self.slot_groups})"
        )

    @property
    def makes_batches(self) -> bool:
        return self.batch is not None

    @property
    def shared_seed(self) -> int:
        """The seed of other parts of the pipeline that have none: the same on all ranks."""
        return derive_seed(self.seed) >> (64 - SEED_BITS)

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        opened = await self.shards.listed(context.session)
        index = await self._index(opened)
        is_in_lanes = self._is_in_lanes(index, state)
        rank = self.rank or context.rank or rank_here()
        whole_pass = self._steps(len(index), rank, is_in_lanes)
        passes = context.passes or Passes()
        steps = resume_steps(replace(whole_pass, before=passes.steps), state, index.digest)
        if steps.is_idle:
            logger.info(
                "loader worker %d reads nothing: %d workers of a rank read",
                steps.worker,
                steps.workers,
            )
            return
        begin_pass(passes, steps, state, is_repeated=context.passes is not None)
        versions = versions_of(context.session, index)
        note = check_versions(versions, index, state)
        verify = self.shards.options.verify
        records = IndexedRecords(opened.storages, index, verify=verify, note_version=note)
        if int(index.block_places[-1]) <= WHOLE_BYTES:
            await records.keep_lengths()
        taken = 0 if state is None else (state["position"] - steps.base) // steps.batch
        first = steps.next_own(taken)
        most = EXACT_CHUNK_BYTES if self._is_exact(index) else BLOCKS_CHUNK_BYTES
        chunk_bytes = max(1, min(most, context.budget // 8))
        most_steps = max(1, chunk_bytes // max(1, int(steps.share * mean_bytes(index))))
        self._warn_empty(whole_pass, len(index))
        reader = Reader(steps.rank * steps.workers + steps.worker, steps.world_size * steps.workers)
        log_reader(reader, f"the records of {display_name(self.index)}")
        order = self._order(index, context.epoch, is_in_lanes)
        states = StepStates(
            steps=steps,
            digest=index.digest,
            locate=partial(locate_position, index, order),
            versions=partial(versions.of_all, len(index.shards)),
            is_in_lanes=is_in_lanes,
            later_steps=whole_pass.given,
            common=passes.common,
        )
        # One chunk is taken by later stages while the next one is made.
        budget = context.budget - 2 * chunk_bytes
        async with background() as tasks:
            take = self._reader(
                order,
                records,
                steps,
                first=first,
                most_steps=most_steps,
                budget=budget,
                tasks=tasks,
                threads=context.session.threads,
            )
            for step, positions in steps.runs(first, most_steps):
                if steps.fills_up(step):
                    frames = await records.fetch(order.records(positions.ravel()))
                else:
                    frames = await take(positions.ravel())
                elements = frames if self.batch is None else Batches(frames, positions.shape[1])
                yield Chunk.weigh(elements, states.positions_from(step))

    def _reader(
        self,
        order: BlockOrder | ExactOrder | LaneOrder,
        records: IndexedRecords,
        steps: Steps,
        *,
        first: int,
        most_steps: int,
        budget: int,
        tasks: TaskGroup,
        threads: Threads,
    ) -> Callable[[Numbers], Awaitable[Frames]]:
        """A function that gives the records at the positions of this reader's steps, in order."""
        if isinstance(order, ExactOrder):
            # The step that fills up takes positions from elsewhere: it is fetched alone.
            runs = (
                positions.ravel()
                for step, positions in steps.runs(first, most_steps)
                if not steps.fills_up(step)
            )
            return read_exact(order, records, runs, tasks, budget)
        if isinstance(order, LaneOrder):
            self._warn_repeated(order, steps)
            own = own_cells(order, steps, first)
            windows = sum(int(each.share * self.block_bytes) + 1 for each in own.values())
            limit = self._limit(records.index, windows, budget)
            return LaneReading(order, records, own, tasks=tasks, limit=limit, threads=threads).take
        self._warn_shared(order, steps)
        groups = steps.groups(order, first)
        windows = len(groups) * order.window * self.block_bytes
        limit = self._limit(records.index, windows, budget)
        return BlockReading(order, records, groups, tasks=tasks, limit=limit, threads=threads).take

    async def count(self, opened: Session, rank: Rank | None) -> int:
        index = await self._index(await self.shards.listed(opened))
        is_in_lanes = self._is_in_lanes(index, None)
        steps = self._steps(len(index), self.rank or rank or rank_here(), is_in_lanes)
        return steps.elements if self.batch is None else steps.batches

    async def _index(self, opened: OpenSource) -> Index:
        """Opens the index, without the lengths of its records.

        The index must be that of the listed shards.
        """
        index: Index | None = self.memo.get(Index)
        if index is None:
            index = await open_index(await opened.storages.at(self.index), self.index)
            await check_listed(index, opened)
            self.memo[Index] = index
        return index

    def _steps(self, total: int, rank: Rank, is_in_lanes: bool) -> Steps:
        """The steps of this reader from the start.

        In lanes, some of its workers may be idle.
        """
        batch = rank.world_size if self.batch is None else self.batch
        if batch % rank.world_size:
            raise ValueError(
                f"global_batch_size={batch} is not a multiple of the number of ranks, "
                f"{rank.world_size}: choose a multiple of each number of ranks that the job will "
                "run with"
            )
        worker, workers = worker_here()
        if is_in_lanes:
            readers = rank.world_size if self.batch is None else 1
            workers = reading_workers(self._lanes.classes, readers, workers)
        return Steps(
            total=total,
            batch=batch,
            even=self.even,
            rank=rank.rank,
            world_size=rank.world_size,
            worker=worker,
            workers=workers,
        )

    def _warn_empty(self, steps: Steps, records: int) -> None:
        """Warns of readers without positions; each reader computes the loads of all."""
        if steps.whole >= steps.workers:
            return
        each = [
            (rank, worker) for rank in range(steps.world_size) for worker in range(steps.workers)
        ]
        loads = [replace(steps, rank=rank, worker=worker).elements for rank, worker in each]
        reader = Reader(steps.rank * steps.workers + steps.worker, len(each))
        if steps.total and not any(loads):
            warn_once(
                f"even={self.even!r} drops all of {records:,} records, which do not fill a global "
                f"batch of {steps.batch:,}: pass even='pad', or a smaller global_batch_size"
            )
        what = f"the {records:,} records of {display_name(self.index)}"
        warn_uneven(reader, loads, what, "Pass even='pad' to global_shuffle")

    def _warn_shared(self, order: BlockOrder, steps: Steps) -> None:
        """Says when more than two ranks read each block, and how one rank alone does."""
        if steps.world_size > 2 * order.groups:
            times = steps.world_size // order.groups
            warn_once(
                f"global_shuffle has {order.groups} groups of slots for {steps.world_size} ranks, "
                f"so about {times} ranks read each block: pass slot_groups={steps.world_size}, or "
                "a multiple, and one rank reads each"
            )

    def _warn_repeated(self, order: LaneOrder, steps: Steps) -> None:
        """Says how often bytes are read where it is more than once, and what to do."""
        times = times_read(order.lanes.classes, steps.world_size if self.batch is None else 1)
        if times > 1:
            warn_once(
                f"without global_batch_size, {steps.world_size} ranks read each byte about "
                f"{times} times: pass global_batch_size={steps.world_size}, or a multiple, and "
                "they read it once"
            )

    def _is_exact(self, index: Index) -> bool:
        return mean_bytes(index) >= EXACT_BYTES if self.quality is None else self.quality == "exact"

    def _is_in_lanes(self, index: Index, state: Mapping[str, Any] | None) -> bool:
        """Whether blocks are ordered in lanes, from the start or by the state to resume from.

        Raises a PositionMismatchError if a later release saved the state in another order.
        """
        if self._is_exact(index):
            return False
        if state is None:
            return self.slot_groups is None and self.window_bytes is None
        saved = state.get("order")
        if saved not in (None, LANES_ORDER):
            raise PositionMismatchError(
                f"this state is of order {saved!r}, which this release of streamrec does not know: "
                "resume with the release that saved it, or a later one"
            )
        return saved is not None

    @property
    def _lanes(self) -> Lanes:
        return Lanes(1, CLASSES_OF_RECORDS) if self.batch is None else Lanes(self.batch, CLASSES)

    def _order(
        self, index: Index, epoch: int, is_in_lanes: bool
    ) -> BlockOrder | ExactOrder | LaneOrder:
        if self._is_exact(index):
            return ExactOrder(len(index), self.seed, epoch)
        records = np.diff(index.first_records)
        sizes = np.array([shard.bytes for shard in index.shards], np.int64)
        if is_in_lanes:
            lanes = self._lanes
            block_bytes = lane_block_bytes(self.block_bytes, index.nbytes, lanes.count)
            bounds = cut_blocks(records, sizes, block_bytes)
            return LaneOrder(bounds=bounds, seed=self.seed, epoch=epoch, lanes=lanes)
        bounds = cut_blocks(records, sizes, self.block_bytes)
        groups = self.slot_groups or groups_for(self.batch or 24)
        window = max(1, (self.window_bytes or WINDOW_BYTES) // self.block_bytes // groups)
        return BlockOrder(
            bounds=bounds,
            seed=self.seed,
            epoch=epoch,
            unit=self.batch or groups,
            groups=groups,
            window=window,
        )

    def _limit(self, index: Index, needed: int, budget: int) -> int:
        """How many bytes of blocks may be held.

        Raises a ValueError if the budget is smaller than the windows.
        """
        if min(needed, index.nbytes) > budget:
            raise ValueError(
                f"the blocks that this rank reads at a time need {needed:,} bytes, but only "
                f"{budget:,} of the memory budget are left for them: pass a larger "
                "with_options(memory_budget=...), or a smaller block_bytes, which changes the order"
            )
        # 24 blocks ahead keep the connections busy.
        return min(budget, needed + 24 * self.block_bytes)


def versions_of(session: Session, index: Index) -> ShardVersions:
    """The versions of an index's shards: those in it, and those that a run notes."""
    if id(index) not in session.kept:
        versions = ShardVersions()
        for number, shard in enumerate(index.shards):
            versions.note(number, shard.version)
        session.kept[id(index)] = index, versions
    return session.kept[id(index)][1]  # type: ignore[no-any-return]


def check_versions(
    versions: ShardVersions, index: Index, state: Mapping[str, Any] | None
) -> Callable[[int, str | None], None]:
    """Compares the versions in an index with those in a state.

    Returns a function that does so with the version of an answer, and notes it.
    """
    saved = SavedVersions.of(state, 0)
    listed = [shard.version for shard in index.shards]
    saved.check_all(listed, [shard.path for shard in index.shards])
    versions.restore(saved)

    def note(shard: int, version: str | None) -> None:
        is_listed = listed[shard] is not None
        saved.check(shard, version, index.shards[shard].path, listed=is_listed)
        versions.note(shard, version)

    return note


def locate_position(
    index: Index, order: BlockOrder | ExactOrder | LaneOrder, position: int
) -> RecordLocation:
    """The location of the record at a position of an order."""
    (number,) = order.records(np.array([position])).tolist()
    shard = int(index.shard_of(number))
    return RecordLocation(index.shards[shard].path, number - int(index.first_records[shard]))


async def check_listed(index: Index, opened: OpenSource) -> None:
    """Refuses an index of shards other than those of the data set."""
    listing = await complete(opened)
    indexed = {location_of(shard.path): shard.path for shard in index.shards}
    listed = {location_of(path): path for path in listing.paths}
    missing = sorted(listed.keys() - indexed.keys())
    more = sorted(indexed.keys() - listed.keys())
    if missing or more:
        first = f"it lacks {listed[missing[0]]}" if missing else f"it also has {indexed[more[0]]}"
        raise ManifestError(
            f"{index.path}: this index does not belong to these {len(listed):,} shards: {first}; "
            f"pass the names of its shards, or write it again: streamrec index SHARDS {index.path}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStates:
    """What positions say of a reader's steps in one pass.

    Args:
        steps: The reader's steps.
        digest: The digest of the index.
        locate: The location of the record at a position of the order.
        versions: What a state holds of the shards' versions.
        is_in_lanes: Which order of blocks it is.
        later_steps: The number of this rank's steps in each later pass.
        common: That of `Passes`.
    """

    steps: Steps
    digest: str
    locate: Callable[[int], RecordLocation]
    versions: Callable[[], str]
    is_in_lanes: bool
    later_steps: int
    common: int | None

    def positions_from(self, first: int) -> NumberedPositions:
        """The positions of this reader's steps from one on: each worker skips those of others."""
        return NumberedPositions(first, self.source, self.origins_of, step=self.steps.workers)

    def origins_of(self, step: int, row: int) -> Sequence[RecordLocation]:
        """The record in a row of a step."""
        positions = self.steps.positions(step)
        return (self.locate(int(positions[row])),) if row < len(positions) else ()

    def source(self, step: int) -> dict[str, Any]:
        """The state of the source before a step."""
        steps = self.steps
        state: dict[str, Any] = {"position": steps.position(step), "index": self.digest}
        if self.is_in_lanes:
            state["order"] = LANES_ORDER
        state["versions"] = self.versions()
        rank = [steps.rank, steps.world_size]
        if steps.workers > 1:
            state |= {
                "began": steps.base,
                "batch": steps.batch,
                "worker": [steps.worker, steps.workers],
            }
            if steps.before is not None:  # as in a job that a state of an earlier release began
                state["steps"] = [steps.before, steps.given, self.later_steps]
            if self.common is not None:
                state |= {"rank": rank, "common": self.common}
        elif self.common is not None and (steps.before or 0) + step > self.common:
            state["rank"] = rank
        return state


def begin_pass(
    passes: Passes, steps: Steps, state: Mapping[str, Any] | None, *, is_repeated: bool
) -> None:
    """Counts a reader's steps among those of the run's passes, which it may resume from a state.

    Warns where only the rank that saved a state of a repeated pass can resume from it.
    """
    if state is not None:
        passes.steps = steps.before
        # A state of one process names its rank if the ranks are at different steps already.
        passes.common = state.get("common", -1 if "rank" in state else None)
    passes.begin(steps.given, steps.batches)
    if is_repeated and steps.before is not None and passes.common is None and steps.is_uneven:
        passes.common = steps.before + steps.whole
        warn_once(
            f"the last step of a pass over {steps.total:,} records has records for some of "
            f"{steps.world_size} ranks only, so in later passes of repeat() the ranks are at "
            "different steps, and each can only resume from its own state: pass even='drop', "
            "'pad' or 'cycle' to global_shuffle, or leave repeat() out and iterate again for each "
            "epoch"
        )


def resume_steps(steps: Steps, state: Mapping[str, Any] | None, digest: str) -> Steps:
    """A reader's steps from a state on.

    Raises a PositionMismatchError if the state is of another index or loader worker.
    """
    if state is None:
        return steps
    if state["index"] != digest:
        raise PositionMismatchError(
            f"this state was saved with an index of digest {state['index']}, but this index has "
            f"{digest}: the data set was changed; resume with the index that it was saved with, "
            "or start over without the state"
        )
    saved_rank = state.get("rank")
    if saved_rank not in (None, [steps.rank, steps.world_size]) and is_past_common(state):
        raise PositionMismatchError(
            f"this state is of rank {saved_rank[0]} of {saved_rank[1]}, but this is rank "
            f"{steps.rank} of {steps.world_size}: in this repeat(), the last step of a pass has "
            "records for some ranks only, so the ranks are at different steps. Resume each rank "
            "from its own state; to resume with other ranks, pass even='drop', 'pad' or 'cycle' "
            "to global_shuffle before the state is saved"
        )
    # A state of one process holds a position, from which any number of readers can continue. A
    # state of one of several loader workers says nothing of the others, so only the same worker
    # continues.
    worker = state.get("worker")
    if worker is None:
        return replace(steps, base=int(state["position"]), before=0)
    if worker != [steps.worker, steps.workers]:
        raise PositionMismatchError(
            f"this state is of loader worker {worker[0]} of {worker[1]}, but this is worker "
            f"{steps.worker} of {steps.workers}: streamrec.torch.job_state(loader.state_dict()) "
            "makes one state of those of all workers, from which any number of ranks and workers "
            "can resume"
        )
    before = state["steps"][0] if "steps" in state else None
    return replace(steps, base=int(state["began"]), before=before)
