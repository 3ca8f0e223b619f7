"""The tasks that fetch shards into their queues, and what they wait for.

`open_ahead.py` decides which shards these are. A task opens its shard, pushes block after block
into its queue, and waits before each one until it may be read (`Fetching.may_read`).

Rules:
- A task that fails puts its error into its queue, after the records before it: tasks raise nothing.
- A queue that holds its share waits for the consumer (`Waiters.room`).
- All queues, and ranges ahead of their turn, together hold what the run may hold: the run's ledger
  is asked before a block or a long record is read. Where it says no, only the shard that the
  interleave waits for goes on, while the consumer waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import anyio
from anyio.abc import TaskGroup

from streamrec.errors import StreamrecError
from streamrec.pipeline.sources.shards.open_ahead import OpenAhead, ShardMemory
from streamrec.pipeline.sources.shards.shard_queue import ShardInterleave, ShardQueue
from streamrec.shards import (
    Listing,
    Portion,
    ReadOptions,
    ShardCursor,
    ShortShard,
    open_short_shard,
    read_short_shards,
)
from streamrec.storage import ByteStream, Storage, Storages
from streamrec.storage.ledger import Ledger, answer


class Waiters:
    """Who waits: the interleave for records, and the tasks of full queues for room.

    Args:
        ledger: The run's, which is told when the interleave takes or waits.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._awaited: dict[ShardQueue, int] = {}
        self._arrival: asyncio.Future[None] | None = None
        self._resting: dict[ShardQueue, asyncio.Future[None]] = {}
        self._waking = False

    async def arrival(self, queues: dict[ShardQueue, int]) -> None:
        """Waits until each of these queues has that many records available, or gets no more.

        Without queues, it waits until something has arrived in one of all.
        """
        self._awaited = queues
        for queue in queues.keys() & self._resting.keys():
            answer(self._resting.pop(queue))
        self._arrival = asyncio.get_running_loop().create_future()
        self._ledger.notify()
        try:
            await self._arrival
        finally:
            self._arrival = None

    def arrived(self, queue: ShardQueue | None = None) -> None:
        """Something has arrived; or it is known better how many shards to open ahead."""
        if queue is not None and (needed := self._awaited.get(queue)) is not None:
            # Woken after each small block, the interleave would only look, and wait again.
            if queue.available < needed and queue.comes:
                return
            del self._awaited[queue]
        if self._arrival is not None and (queue is None or not self._awaited):
            answer(self._arrival)

    def awaits(self, queue: ShardQueue, *, has_turn: bool) -> bool:
        """Whether the interleave waits for this shard.

        It may also wait for any whose turn has come, whichever is there first.
        """
        if self._arrival is None or self._arrival.done():
            return False
        return queue in self._awaited or (not self._awaited and has_turn)

    async def room(self, queue: ShardQueue) -> None:
        """Waits until a full queue is low, or the interleave waits for it."""
        if not queue.has_room:
            room = self._resting[queue] = asyncio.get_running_loop().create_future()
            await room

    def wake(self) -> None:
        """Lets queues that have room again go on, one in each turn of the loop.

        It is called when records were taken.
        """
        self._ledger.notify()
        if not self._waking:
            self._wake_next()

    def _wake_next(self) -> None:
        """Wakes the task of one queue that has room, and comes back in the loop's next turn."""
        queue = next((queue for queue in self._resting if queue.is_low), None)
        self._waking = queue is not None
        if queue is not None:
            answer(self._resting.pop(queue))
            asyncio.get_running_loop().call_soon(self._wake_next)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """What the tasks that fetch the shards of one source share.

    Args:
        storages: The stores.
        listing: The shards, as far as they are known.
        options: How shards are read.
        batch: How many elements a later stage takes at a time.
        memory: What each queue may hold.
        ledger: The run's, which is asked before each block.
        interleave: The queues, and whose turn it is.
        open_ahead: Decides which shards are opened.
        waiters: Who waits.
    """

    storages: Storages
    listing: Listing
    options: ReadOptions
    batch: int
    memory: ShardMemory
    ledger: Ledger
    interleave: ShardInterleave
    open_ahead: OpenAhead
    waiters: Waiters

    @property
    def known(self) -> int | None:
        """The number of shards, or None while more may be listed."""
        return len(self.listing.paths) if self.listing.complete else None

    def start(self, tasks: TaskGroup, count: int, *, at_once: bool) -> None:
        """Starts tasks that fetch shards, up to `count` after those in the cycle.

        Unless it must be `at_once`, short shards start together.
        """
        openings = self.open_ahead.next(
            self.interleave, count, known=self.known, at_once=at_once, fits=self.ledger.account.fits
        )
        if openings.queues and openings.together:
            tasks.start_soon(fetch_short_shards, self, openings.queues)
        else:
            for queue in openings.queues:
                tasks.start_soon(fetch_shard, self, queue, self.listing.portion(queue.start.shard))

    def add_sizes(self, sizes: Iterable[int]) -> None:
        """Notes the sizes of opened shards, by which further ones are opened."""
        if self.open_ahead.add_sizes(sizes):
            self.waiters.arrived()

    async def may_read(self, queue: ShardQueue, nbytes: int) -> None:
        """Waits until the run may hold that many more bytes of a shard.

        Its queue has room: `Waiters.room` says when.
        """
        await self.ledger.admit(queue.account, nbytes, partial(self._is_next, queue))

    def _is_next(self, queue: ShardQueue) -> bool:
        """Whether the interleave waits for this shard, so that it may read what does not fit."""
        has_turn = queue.start.shard < self.interleave.coming.next
        return self.waiters.awaits(queue, has_turn=has_turn)

    def options_for(self, queue: ShardQueue, storage: Storage) -> ReadOptions:
        """How one shard of a store is read; its compression is given if known."""
        options = self.memory.options(self.options, self.known, self.batch)
        if not storage.may_stall and options.block_bytes is not None:
            block = self.memory.together(options.block_bytes, self.known)
            if block != options.block_bytes:
                options = replace(options, block_bytes=block)
        compression = queue.start.compression
        return options if compression is None else replace(options, compression_type=compression)


async def fetch_shard(
    source: Fetching, queue: ShardQueue, portion: Portion, maybe_short: bool = False
) -> None:
    """Fetches one shard to its end; whole, if it `maybe_short` and is. Raises nothing."""
    try:
        storage = await source.storages.at(portion.path)
        stream = None
        if maybe_short and storage.streams_short:
            found = await open_short_shard(storage, portion.path, source.options, portion.expected)
            if isinstance(found, ShortShard):
                source.add_sizes([found.info.size or 0])
                push_short_shard(source, queue, portion, found, checked=True)
                return
            stream = found
        await fetch_blocks(source, queue, portion, storage, stream)
    except Exception as error:
        queue.error = error  # whatever it is, it waits for its turn
    queue.ended = True
    source.waiters.arrived(queue)


async def fetch_blocks(
    source: Fetching,
    queue: ShardQueue,
    portion: Portion,
    storage: Storage,
    stream: ByteStream | None,
) -> None:
    """Fetches one shard, or the part of it that is read, block by block."""
    place = queue.start.place
    options = source.options_for(queue, storage)
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
        expected=portion.expected,
    )
    try:
        if cursor.info.size is not None:
            source.add_sizes([cursor.info.size])
        source.interleave.versions.opened(queue.start.shard, cursor.info.version)
        limit = source.memory.queue_bytes(source.known, cursor.most_block_bytes)
        start = queue.start.opened(cursor.info.version, cursor.compression_type)
        queue.open(start, max(limit, queue.limit))
        await push_blocks(source, queue, portion, cursor)
    finally:
        source.ledger.arrived(queue.account)
        with anyio.CancelScope(shield=True):
            await cursor.aclose()


async def push_blocks(
    source: Fetching, queue: ShardQueue, portion: Portion, cursor: ShardCursor
) -> None:
    """Pushes the blocks of an opened shard into its queue, each when it may be read."""
    cursor.memory.reserve = partial(source.may_read, queue)
    while (frames := await cursor.next()) is not None:
        count = len(frames)
        begun = cursor.record - count
        first, last = portion.within(begun, count)
        if first < last:
            own = frames if last - first == count else frames.window(first, last)
            queue.push(own, begun + first)
            del own
            source.waiters.arrived(queue)
        source.ledger.arrived(queue.account)
        del frames  # or a block would be held while the next one waits for room
        if portion.last is not None and begun + count >= portion.last:
            return
        # Most blocks have room, and need no coroutine to learn it.
        if not queue.has_room:
            await source.waiters.room(queue)
        if not source.ledger.admit_now(queue.account, cursor.block_bytes):
            await source.may_read(queue, cursor.block_bytes)
    if portion.expected is not None and not cursor.losses.count:
        portion.expected.check_records(portion.path, cursor.record)


async def fetch_short_shards(source: Fetching, queues: list[ShardQueue]) -> None:
    """Fetches short shards whole: local ones in one step, others by a task each."""
    portions = {queue: source.listing.portion(queue.start.shard) for queue in queues}
    needs_reader = source.options.block_bytes is not None or source.options.compression_type
    short = [
        queue
        for queue, portion in portions.items()
        if not needs_reader and queue.start.place.is_beginning and portion.is_all
    ]
    found = await read_short_shards(
        source.storages, [portions[queue].path for queue in short], source.options
    )
    source.add_sizes(shard.info.size or 0 for shard in found if shard is not None)
    for queue, shard in zip(short, found, strict=True):
        # some gateways list other versions than they answer with: opening the shard compares them
        if shard is not None and not _needs_comparison(portions[queue], shard):
            push_short_shard(source, queue, portions[queue], shard)
    # One scope for all of them: a scope of its own would cost each a tenth.
    async with asyncio.TaskGroup() as tasks:
        for queue in queues:
            if not queue.ended:
                portion = portions[queue]
                tasks.create_task(fetch_shard(source, queue, portion, maybe_short=queue in short))


def _needs_comparison(portion: Portion, short: ShortShard) -> bool:
    return portion.expected is not None and portion.expected.differs_in_version_only(short.info)


def push_short_shard(
    source: Fetching,
    queue: ShardQueue,
    portion: Portion,
    short: ShortShard,
    checked: bool = False,
) -> None:
    """All of a shard has arrived; where it is not as expected, that is its error."""
    expected = portion.expected
    count = len(short.frames)
    try:
        if expected is not None and not checked:
            expected.check(short.info)
        source.interleave.versions.opened(queue.start.shard, short.info.version)
        # No block comes after this one.
        queue.open(queue.start.opened(short.info.version, ""), queue.limit)
        _, last = portion.within(0, count)
        if last:
            queue.push(short.frames if last == count else short.frames.window(0, last), 0)
        if expected is not None:
            expected.check_records(short.info.path, count)
    except StreamrecError as error:
        queue.error = error
    queue.ended = True
    source.waiters.arrived(queue)
