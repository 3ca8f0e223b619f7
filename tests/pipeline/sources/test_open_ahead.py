"""Which shards are opened now, decided without I/O; and what their tasks wait for."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.sources.interleave import Plan
from streamrec.pipeline.sources.shards.fetch import Waiters
from streamrec.pipeline.sources.shards.open_ahead import (
    MIN_BLOCK_BYTES,
    QUEUE_BYTES,
    SHORT_BYTES,
    SLACK_BYTES,
    SMALL_BYTES,
    OpenAhead,
    ShardMemory,
)
from streamrec.pipeline.sources.shards.shard_queue import ShardInterleave, ShardQueue, ShardStart
from streamrec.shards import ReadOptions
from streamrec.storage import BLOCK_BYTES
from streamrec.storage.connections import MAX_OPEN, Connections
from streamrec.storage.ledger import Ledger
from streamrec.tfrecord import Frames

PLAN = Plan(cycle_length=2)
PLACES = 4
"""Two in the cycle, and two after them."""

SHORT = 100_000
MEDIUM = 2_000_000


def open_ahead_for(budget: int = 1 << 30, sizes: tuple[int, ...] = ()) -> OpenAhead:
    open_ahead = OpenAhead(ShardMemory(plan=PLAN, budget=budget), Connections(budget))
    open_ahead.add_sizes(sizes)
    return open_ahead


class RunThatAnswers:
    """What the run answers, and what it was asked."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.questions: list[int] = []

    def __call__(self, nbytes: int) -> bool:
        self.questions.append(nbytes)
        return self.answer


def next_shards(
    open_ahead: OpenAhead,
    interleave: ShardInterleave,
    *,
    at_once: bool = True,
    fits: bool = True,
) -> list[int]:
    openings = open_ahead.next(
        interleave, open_ahead.count + 2, known=None, at_once=at_once, fits=RunThatAnswers(fits)
    )
    return [queue.start.shard for queue in openings.queues]


def test_shards_that_have_a_place_are_opened_even_if_nothing_fits() -> None:
    open_ahead = open_ahead_for(budget=0)
    interleave = ShardInterleave(PLAN, 100)
    assert next_shards(open_ahead, interleave, fits=False) == [0, 1, 2, 3]
    assert next_shards(open_ahead, interleave, fits=False) == []


def test_small_shards_are_opened_as_far_ahead_as_the_network_needs() -> None:
    assert open_ahead_for().count == 2
    assert open_ahead_for(sizes=(SHORT,)).count == MAX_OPEN - 2
    assert open_ahead_for(sizes=(20 * SMALL_BYTES,)).count < 20
    # Larger ones are read by parallel ranges, unless the memory for these holds four of them.
    assert open_ahead_for(1 << 20, sizes=(20 * SMALL_BYTES,)).count == 2


def test_shards_further_ahead_stay_within_the_budget_and_the_run() -> None:
    sizes = (MEDIUM, MEDIUM)
    interleave = ShardInterleave(PLAN, 100)
    budget = PLACES * QUEUE_BYTES + 3 * (MEDIUM + SLACK_BYTES)
    assert next_shards(open_ahead_for(budget, sizes), interleave) == [*range(PLACES + 3)]
    assert next_shards(open_ahead_for(budget - 1, sizes), interleave) == [*range(PLACES + 2)]
    assert next_shards(open_ahead_for(budget, sizes), interleave, fits=False) == [*range(PLACES)]


def test_the_run_is_asked_once_for_all_shards_further_ahead() -> None:
    open_ahead = open_ahead_for(sizes=(MEDIUM,))
    asked = RunThatAnswers(answer=True)
    interleave = ShardInterleave(PLAN, 100)
    openings = open_ahead.next(interleave, 50, known=None, at_once=True, fits=asked)
    assert len(openings.queues) == 50
    assert asked.questions == [MEDIUM + SLACK_BYTES]


def test_a_shard_further_ahead_may_hold_a_small_shard() -> None:
    interleave = ShardInterleave(PLAN, 100)
    openings = open_ahead_for(sizes=(SHORT,)).next(
        interleave, 10, known=None, at_once=True, fits=RunThatAnswers(answer=True)
    )
    limits = [queue.limit for queue in openings.queues]
    assert limits == [0] * PLACES + [SMALL_BYTES + SLACK_BYTES] * 6


def test_short_shards_wait_until_some_are_missing() -> None:
    """Unless the interleave waits for one."""
    open_ahead = open_ahead_for(sizes=(SHORT,))
    interleave = ShardInterleave(PLAN, 1000)
    assert next_shards(open_ahead, interleave) == [*range(64)]
    interleave.coming.next = 31
    assert next_shards(open_ahead, interleave, at_once=False) == []
    interleave.coming.next = 32
    assert next_shards(open_ahead, interleave, at_once=False) == [*range(64, 96)]
    interleave.coming.next = 33
    assert next_shards(open_ahead, interleave, at_once=True) == [96]


def test_one_task_opens_short_shards_if_their_queues_hold_two() -> None:
    def is_together(budget: int, size: int) -> bool:
        interleave = ShardInterleave(PLAN, 100)
        return (
            open_ahead_for(budget, (size,))
            .next(interleave, 4, known=None, at_once=True, fits=RunThatAnswers(answer=True))
            .together
        )

    least = 2 * SHORT_BYTES * PLACES
    assert is_together(least, SHORT_BYTES)
    assert not is_together(least - 1, SHORT_BYTES)
    assert not is_together(least, SHORT_BYTES + 1)


@given(
    budget=st.integers(0, 1 << 28),
    turns=st.lists(
        st.tuples(
            st.integers(0, 40), st.booleans(), st.booleans(), st.integers(1, 4 * SMALL_BYTES)
        ),
        max_size=30,
    ),
)
def test_each_shard_is_opened_once_and_in_order(
    budget: int, turns: list[tuple[int, bool, bool, int]]
) -> None:
    open_ahead = open_ahead_for(budget)
    interleave = ShardInterleave(PLAN, 500)
    opened: list[int] = []
    for passed, at_once, fits, size in turns:
        found = next_shards(open_ahead, interleave, at_once=at_once, fits=fits)
        opened += found
        assert fits or len(found) <= PLACES
        # The interleave passes shards that were opened.
        for _ in range(min(passed, len(opened) - interleave.coming.next)):
            interleave.coming.take()
        open_ahead.add_sizes([size])
    assert opened == [*range(len(opened))]


def test_blocks_are_as_large_as_a_share_allows() -> None:
    memory = ShardMemory(plan=PLAN, budget=PLACES * 4 * BLOCK_BYTES)
    usual = memory.options(ReadOptions(), None, batch=7)
    assert (usual.block_bytes, usual.block_records) == (BLOCK_BYTES, 1)
    # One shard is read in blocks of twice the size, which end between batches.
    alone = memory.options(ReadOptions(), 1, batch=7)
    assert (alone.block_bytes, alone.block_records) == (2 * BLOCK_BYTES, 7)
    small = ShardMemory(plan=PLAN, budget=1000).options(ReadOptions(), None, batch=1)
    assert small.block_bytes == MIN_BLOCK_BYTES
    chosen = memory.options(ReadOptions(block_bytes=100_000), None, batch=1)
    assert chosen.block_bytes == 100_000


def test_a_queue_holds_two_blocks_if_its_share_does() -> None:
    memory = ShardMemory(plan=PLAN, budget=PLACES * 10 * QUEUE_BYTES)
    assert memory.queue_bytes(None) == QUEUE_BYTES
    assert memory.queue_bytes(None, QUEUE_BYTES) == 2 * QUEUE_BYTES
    assert memory.queue_bytes(None, 6 * QUEUE_BYTES) == 10 * QUEUE_BYTES
    assert memory.queue_bytes(2, 6 * QUEUE_BYTES) == 12 * QUEUE_BYTES


# What tasks wait for.


def full_queue(shard: int) -> ShardQueue:
    queue = ShardQueue(ShardStart(shard))
    queue.open(queue.start.opened(None, ""), 10)
    queue.push(Frames.of([bytes(100)]), 0)
    return queue


def take_all(queue: ShardQueue) -> None:
    queue.take(queue.available)


async def run_ready_tasks_once() -> None:
    """Lets all tasks that are ready go on, once."""
    await asyncio.sleep(0)


async def test_tasks_of_queues_with_room_go_on_one_in_each_turn() -> None:
    waiters = Waiters(Ledger(1000))
    queues = [full_queue(shard) for shard in range(3)]
    gone: list[int] = []

    async def task(queue: ShardQueue) -> None:
        await waiters.room(queue)
        gone.append(queue.start.shard)

    async with asyncio.TaskGroup() as tasks:
        for queue in queues:
            tasks.create_task(task(queue))
        await run_ready_tasks_once()
        assert gone == []
        for queue in queues:
            take_all(queue)
        waiters.wake()
        seen = []
        while len(gone) < 3:
            await run_ready_tasks_once()
            seen.append(len(gone))
        assert {0, 1, 2, 3} >= set(seen) >= {1, 2, 3}


async def test_the_interleave_waits_for_all_queues_that_it_needs() -> None:
    waiters = Waiters(Ledger(1000))
    one, other, third = (ShardQueue(ShardStart(shard)) for shard in range(3))
    arrival = asyncio.create_task(waiters.arrival({one: 2, other: 1}))
    await run_ready_tasks_once()
    assert waiters.awaits(one, has_turn=False)
    assert not waiters.awaits(third, has_turn=True)
    for queue in [one, third, other]:
        queue.open(queue.start, 1000)
        queue.push(Frames.of([b"record"]), 0)
        waiters.arrived(queue)
    await run_ready_tasks_once()
    assert waiters.awaits(one, has_turn=False), "it needs two records"
    assert not arrival.done()
    one.push(Frames.of([b"record"]), 1)
    waiters.arrived(one)
    assert not waiters.awaits(other, has_turn=True)
    await arrival


@pytest.mark.parametrize("reason", ["end", "full"])
async def test_the_interleave_waits_for_no_record_that_will_not_come(reason: str) -> None:
    waiters = Waiters(Ledger(1000))
    queue = ShardQueue(ShardStart(0))
    arrival = asyncio.create_task(waiters.arrival({queue: 100}))
    await run_ready_tasks_once()
    queue.open(queue.start, 150)
    queue.push(Frames.of([bytes(100)]), 0)
    queue.ended = reason == "end"
    assert not queue.comes
    waiters.arrived(queue)
    await arrival


async def test_the_interleave_waits_for_any_queue_whose_turn_has_come() -> None:
    waiters = Waiters(Ledger(1000))
    queue = ShardQueue(ShardStart(0))
    arrival = asyncio.create_task(waiters.arrival({}))
    await run_ready_tasks_once()
    assert waiters.awaits(queue, has_turn=True)
    assert not waiters.awaits(queue, has_turn=False)
    waiters.arrived(queue)
    await arrival


async def test_a_full_queue_goes_on_if_the_interleave_waits_for_it() -> None:
    waiters = Waiters(Ledger(1000))
    queue = full_queue(0)
    queue.push(Frames.of([bytes(100)]), 1)
    room = asyncio.create_task(waiters.room(queue))
    await run_ready_tasks_once()
    waiters.wake()
    await run_ready_tasks_once()
    assert not room.done()
    arrival = asyncio.create_task(waiters.arrival({queue: 1}))
    await room
    waiters.arrived(queue)
    await arrival
