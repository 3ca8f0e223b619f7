"""The source: shards fetched at once, interleaved in order, within a byte budget.

Each shard in the cycle, and a few after it, is fetched by a task of its own into its queue, and
waits there when the queue holds its share of the budget. `ShardInterleave` decides whose turn it
is; this file only moves blocks.

How many after it: shards that are too small to be read by parallel ranges are opened so far ahead
that together they fill the wire, as `Connections` has measured it (a shard of 100 kB at 40 ms to
the first byte: dozens). Which shards come, and in which order, never depends on it.

Rules:
- A task that fails puts its error into its queue, after the records before it: tasks raise nothing.
- A queue that has a place holds its share of the budget, one further ahead a small shard; each may
  hold one block.
- All queues, and ranges ahead of their turn, together hold what the run may hold: `HeldBytes` is
  asked before a block or a long record is read. Where it says no, only the shard that the
  interleave waits for goes on, while the consumer waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import anyio
from anyio.abc import TaskGroup

from streamrec.display import display_repr
from streamrec.errors import StreamrecError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Derived, Position
from streamrec.pipeline.elements.specs import record_spec
from streamrec.pipeline.engine.budget import answer
from streamrec.pipeline.engine.description import Source
from streamrec.pipeline.engine.queue import run_ahead
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.session import Memo, OpenSource, Session, SourceStores
from streamrec.pipeline.engine.states import format_names
from streamrec.pipeline.engine.versions import ComparedVersions, SavedVersions, ShardVersions
from streamrec.pipeline.sources.interleave import Plan
from streamrec.pipeline.sources.shards.shard_queue import ShardInterleave, ShardQueue, pull
from streamrec.shards import (
    Listing,
    Portion,
    ReadOptions,
    ShardCursor,
    ShardPlace,
    ShortShard,
    open_short_shard,
    read_short_shards,
)
from streamrec.storage import BLOCK_BYTES
from streamrec.storage.tasks import background

QUEUE_BYTES = 6 << 20
"""How much one shard is fetched ahead of its turn, if the budget allows.

More would only leave the caches.
"""

MIN_BLOCK_BYTES = 64 << 10
"""Blocks are at least this large, however small the budget."""

SMALL_BYTES = 8 << 20
"""Smaller shards are opened further ahead; larger ones are read by parallel ranges too."""

SLACK_BYTES = 512 << 10
"""What a small shard's queue holds besides the shard.

It is a block that is larger than what is left for it.
"""

SHORT_BYTES = 256 << 10
"""Shards that are usually no longer than this are started together."""


@display_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class Shards(Source):
    """The description that TFRecordDataset makes: shards, stores, and the order of reading."""

    filenames: tuple[str, ...]
    plan: Plan = Plan()
    options: ReadOptions = ReadOptions()
    stores: SourceStores = field(default=SourceStores(), repr=False)
    memo: Memo = field(default_factory=Memo, init=False, compare=False, repr=False)

    def lines(self) -> Iterator[str]:
        yield f"Shards({self.plan!r}, {format_names(self.filenames)})"

    async def listed(self, session: Session) -> OpenSource:
        """The stores and the listing, without reading records."""
        return await session.open(self, self.stores, 0, self.filenames, self.memo)

    async def opened(self, context: RunContext) -> OpenSource:
        """Its stores and listing.

        Its stores may hold ahead what its queues leave of the budget, or half of it.
        """
        ahead = max(context.budget // 2, context.budget - self.plan.open_inputs * QUEUE_BYTES)
        return await context.session.open(self, self.stores, ahead, self.filenames, self.memo)

    def element_spec(self) -> Any:
        return record_spec()

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        opened = await self.opened(context)
        if state is not None:
            await opened.listing.check_fingerprint(state["share"])
        async with aclosing(read(self, state, context, opened)) as chunks:
            async for chunk in chunks:
                yield replace(chunk, positions=SharePositions(chunk.positions, opened.listing))


@dataclass(frozen=True, slots=True)
class SharePositions(Derived):
    """Positions within a reader's share.

    They have the share's identity, and the number of records before, if counted.
    """

    share: Listing
    given: int | None = None

    def at(self, index: int) -> Position:
        source = {**self.inner.at(index)["source"], "share": self.share.fingerprint}
        return {"source": source if self.given is None else {**source, "given": self.given + index}}


def read(
    shards: Shards, state: Mapping[str, Any] | None, context: RunContext, opened: OpenSource
) -> AsyncGenerator[Chunk]:
    """The records of the listed shards, in chunks."""
    chunks = interleaved(shards, state, context, opened)
    return run_ahead(chunks) if context.offloaded else chunks


async def interleaved(
    shards: Shards, state: Mapping[str, Any] | None, context: RunContext, opened: OpenSource
) -> AsyncGenerator[Chunk]:
    """Pulls chunks from the interleave, and waits for more when nothing can be taken."""
    listing = opened.listing
    versions = compared_versions(context.session, listing, state)
    interleave = ShardInterleave(
        shards.plan.within(context.deterministic),
        0,
        state,
        batch=context.batch,
        skip=context.skip - context.batch_offset,
        max_bytes=context.budget // 8,  # two or three pulls are under way
        paths=listing.labels,
        versions=versions,
    )
    parts = context.session.held.parts
    async with background() as tasks:
        fetchers = Fetchers(shards, opened, tasks, context, interleave)
        parts.append(fetchers)
        try:
            while True:
                ahead = fetchers.ahead
                await listing.until(interleave.next_shard + shards.plan.cycle_length + ahead + 1)
                interleave.shards = len(listing.paths)
                if interleave.finished:
                    break
                pulled, error = pull(interleave)
                fetchers.feed(ahead, at_once=pulled is None)
                if pulled is not None:
                    fetchers.wake()
                    yield pulled
                if error is not None:
                    raise error
                if pulled is None and not interleave.finished:
                    await fetchers.arrival(interleave.awaited)
        finally:
            parts.remove(fetchers)
    if listing.error is not None:
        raise listing.error


def compared_versions(
    session: Session, listing: Listing, state: Mapping[str, Any] | None
) -> ComparedVersions:
    """The versions of a listing's shards, which a run notes from its first epoch on, and those of a
    state.
    """
    _, versions = session.kept.setdefault(id(listing), (listing, ShardVersions()))
    saved = SavedVersions.of(state, 0 if state is None else state["next"])
    versions.restore(saved)

    def about(shard: int) -> tuple[str, bool]:
        portion = listing.portion(shard)
        expected = portion.expected
        return portion.path, expected is not None and expected.version is not None

    return ComparedVersions(versions, saved, about)


class Fetchers:
    """The tasks that fetch shards into queues."""

    def __init__(
        self,
        shards: Shards,
        opened: OpenSource,
        tasks: TaskGroup,
        context: RunContext,
        interleave: ShardInterleave,
    ) -> None:
        self._shards = shards
        self._options = shards.options
        self._storages = opened.storages
        self._connections = opened.storages.connections
        self._listing = opened.listing
        self._tasks = tasks
        self._budget = context.budget
        self._batch = context.batch
        self._sizes: deque[int] = deque(maxlen=16)
        self._typical_bytes = 0
        self._started: set[int] = set()
        self._interleave = interleave
        self._run = context.session.held
        self._behind = 0
        self._awaited: set[ShardQueue] = set()
        self._arrival: asyncio.Future[None] | None = None
        self._resting: dict[ShardQueue, asyncio.Future[None]] = {}
        self._waking = False

    @property
    def ahead(self) -> int:
        """How many shards after those in the cycle are opened before their turn comes."""
        size = self._typical_bytes
        cycle = self._shards.plan.cycle_length
        places = self._shards.plan.open_inputs
        fit = self._connections.room.limit // (size + SLACK_BYTES)
        if not self._sizes or (size > SMALL_BYTES and fit < 4):
            return places - cycle
        return max(places, self._connections.streams_for(size)) - cycle

    def feed(self, ahead: int, at_once: bool) -> None:
        """Starts a task for each wanted queue without one, or one task for short ones.

        Beyond the places, it starts them within the budget.

        Unless it must be `at_once`, short shards start together.
        """
        # As far as is known from the last shards.
        are_short = self._typical_bytes <= SHORT_BYTES and self._share >= 2 * SHORT_BYTES
        missing = self._interleave.next_shard + ahead - self._behind
        if not at_once and are_short and self._sizes and missing < min(32, ahead // 2):
            return
        places = self._shards.plan.open_inputs
        starting: list[ShardQueue] = []
        room = self._typical_bytes + SLACK_BYTES
        fits: bool | None = None
        for number, queue in enumerate(self._interleave.wanted(ahead)):
            if queue.shard in self._started:
                continue
            if number >= places:
                planned = places * QUEUE_BYTES + (number + 1 - places) * room
                if fits is None:  # one question for all: it adds up the bytes of all queues
                    fits = self._run.fits(room)
                if planned > self._budget or not fits:
                    break
                queue.limit = SMALL_BYTES + SLACK_BYTES
            self._started.add(queue.shard)
            starting.append(queue)
        self._behind = max((queue.shard + 1 for queue in starting), default=self._behind)
        if starting and are_short:
            self._tasks.start_soon(self._feed_short, starting)
        else:
            for queue in starting:
                self._tasks.start_soon(self._feed, queue)

    @property
    def held(self) -> int:
        """Bytes of all queues; from any thread."""
        return sum(queue.held for queue in self._interleave.wanted(0))

    @property
    def _share(self) -> int:
        """What one queue in its place may hold."""
        places = self._shards.plan.open_inputs
        if self._listing.complete:
            places = min(places, len(self._listing.paths))
        return self._budget // places

    def wake(self) -> None:
        """Lets queues that have room again go on, one in each turn of the loop.

        It is called when records were taken.
        """
        self._run.notify()
        if not self._waking:
            self._wake_next()

    def _wake_next(self) -> None:
        queue = next((queue for queue in self._resting if queue.is_low), None)
        self._waking = queue is not None
        if queue is not None:
            answer(self._resting.pop(queue))
            asyncio.get_running_loop().call_soon(self._wake_next)

    async def arrival(self, queues: set[ShardQueue]) -> None:
        """Waits until something has arrived in all of these queues.

        Without queues, it waits until something has arrived in one of all.
        """
        self._awaited = queues
        for queue in queues & self._resting.keys():
            answer(self._resting.pop(queue))
        self._arrival = asyncio.get_running_loop().create_future()
        self._run.notify()
        try:
            await self._arrival
        finally:
            self._arrival = None

    def _arrived(self, queue: ShardQueue | None = None) -> None:
        """Something has arrived; or it is known better how many shards to open ahead."""
        self._awaited.discard(queue)
        if self._arrival is not None and (queue is None or not self._awaited):
            answer(self._arrival)

    async def _feed_short(self, queues: list[ShardQueue]) -> None:
        """Fetches short shards whole: local ones in one step, others by a task each."""
        portions = {queue: self._listing.portion(queue.shard) for queue in queues}
        needs_reader = self._options.block_bytes is not None or self._options.compression_type
        short = [
            queue
            for queue, portion in portions.items()
            if not needs_reader and queue.start.place == ShardPlace() and portion.is_all
        ]
        found = await read_short_shards(
            self._storages, [portions[queue].path for queue in short], self._options
        )
        self._note_sizes(shard.info.size or 0 for shard in found if shard is not None)
        for queue, shard in zip(short, found, strict=True):
            if shard is not None:
                self._finish(queue, portions[queue], shard)
        # One scope for all of them: a scope of its own would cost each a tenth.
        async with asyncio.TaskGroup() as tasks:
            for queue in queues:
                if not queue.ended:
                    tasks.create_task(self._feed(queue, maybe_short=queue in short))

    def _finish(
        self, queue: ShardQueue, portion: Portion, short: ShortShard, checked: bool = False
    ) -> None:
        """All of a shard has arrived; where it is not as expected, that is its error."""
        expected = portion.expected
        count = len(short.frames)
        try:
            if expected is not None and not checked:
                expected.check(short.info)
            self._interleave.versions.opened(queue.shard, short.info.version)
            queue.open(short.info.version, "", min(self._share, QUEUE_BYTES))
            _, last = portion.within(0, count)
            if last:
                queue.push(short.frames if last == count else short.frames.window(0, last))
            if expected is not None:
                expected.check_records(short.info.path, count)
        except StreamrecError as error:
            queue.error = error
        queue.ended = True
        self._arrived(queue)

    def _note_sizes(self, sizes: Iterable[int]) -> None:
        self._sizes.extend(sizes)
        if self._sizes:
            self._typical_bytes = int(median(self._sizes))
            self._arrived()

    async def _feed(self, queue: ShardQueue, maybe_short: bool = False) -> None:
        """Fetches one shard to its end; whole, if it `maybe_short` and is."""
        try:
            await self._fetch(queue, maybe_short)
        except Exception as error:
            queue.error = error  # whatever it is, it waits for its turn
        queue.ended = True
        self._arrived(queue)

    async def _fetch(self, queue: ShardQueue, maybe_short: bool) -> None:
        portion = self._listing.portion(queue.shard)
        storage = await self._storages.at(portion.path)
        stream = None
        expected = portion.expected
        if maybe_short and not storage.reads_short:
            found = await open_short_shard(storage, portion.path, self._options, expected)
            if isinstance(found, ShortShard):
                self._note_sizes([found.info.size or 0])
                self._finish(queue, portion, found, checked=True)
                return
            stream = found
        place = queue.start.place
        options = self._options_for(queue)
        # A portion that begins at a mark in a manifest: only shards without compression have marks.
        if not place.offset and portion.place.offset:
            place = replace(portion.place, version=place.version)
            options = replace(options, compression_type="")
        cursor = await ShardCursor.open(
            storage,
            portion.path,
            options,
            place=place,
            byte_range=portion.byte_range,
            stream=stream,
            expected=expected,
        )
        try:
            if cursor.info.size is not None:
                self._note_sizes([cursor.info.size])
            self._interleave.versions.opened(queue.shard, cursor.info.version)
            # Two blocks, since one fills while one is taken.
            limit = min(self._share, max(QUEUE_BYTES, 2 * cursor.most_block_bytes))
            queue.open(cursor.info.version, cursor.compression_type, max(limit, queue.limit))
            admit = partial(self._run.admit, queue, is_next=partial(self._is_next, queue))
            cursor.memory.reserve = admit
            while (frames := await cursor.next()) is not None:
                self._run.arrived(queue)
                count = len(frames)
                begun = cursor.place.record - count
                first, last = portion.within(begun, count)
                if first < last:
                    own = frames if last - first == count else frames.window(first, last)
                    queue.push(own, begun + first)
                    del own
                    self._arrived(queue)
                del frames  # or a block would be held while the next one waits for room
                if portion.last is not None and begun + count >= portion.last:
                    return
                if not queue.has_room:
                    room = self._resting[queue] = asyncio.get_running_loop().create_future()
                    await room
                await admit(cursor.block_bytes)
            if expected is not None and not cursor.losses.count:
                expected.check_records(portion.path, cursor.place.record)
        finally:
            self._run.arrived(queue)
            with anyio.CancelScope(shield=True):
                await cursor.aclose()

    def _is_next(self, queue: ShardQueue) -> bool:
        """Whether the interleave waits for this shard.

        It may also wait for any whose turn has come, whichever is there first.
        """
        if self._arrival is None or self._arrival.done():
            return False
        return queue in self._awaited or (
            not self._awaited and queue.shard < self._interleave.next_shard
        )

    def _options_for(self, queue: ShardQueue) -> ReadOptions:
        """How one shard is read.

        Two blocks of the usual size fit in its share; its compression is given if known.

        Those of a shard that is read alone are twice as large: its records go through the pipeline
        without a copy, save for the batches that straddle two blocks.
        """
        alone = self._shards.plan.cycle_length == 1 or (
            self._listing.complete and len(self._listing.paths) == 1
        )
        blocks = 2 if alone else 1
        group = self._batch if alone else self._shards.plan.block_length
        wanted = self._options.block_bytes or BLOCK_BYTES * blocks
        block = min(wanted, max(self._share // (2 * blocks), MIN_BLOCK_BYTES))
        compression = queue.start.compression
        if compression is None:
            compression = self._options.compression_type
        return replace(
            self._options, block_bytes=block, compression_type=compression, block_records=group
        )
