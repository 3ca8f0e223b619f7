"""The parts of queues: chunks in a row, what fits, and the shards whose turn has not come."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import NumberedPositions
from streamrec.pipeline.engine.queue import ByteQueue, Signal
from streamrec.pipeline.sources.inputs import ChunkRow, InputBuffer
from streamrec.pipeline.sources.shards.shard_queue import ComingShards, ShardStart
from streamrec.storage.ledger import Account


def numbers_from(first: int, count: int, nbytes: int = 1) -> Chunk:
    return Chunk(list(range(first, first + count)), NumberedPositions(first), nbytes)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    takes=st.lists(st.integers(1, 7), max_size=12),
)
def test_a_row_gives_its_elements_in_order_and_knows_its_place(
    sizes: list[int], takes: list[int]
) -> None:
    row = ChunkRow(lambda: {"source": {"next": -1}})
    assert row.mark().at(0) == {"source": {"next": -1}}
    total = 0
    for size in sizes:
        row.add(numbers_from(total, size), weight=10 * size)
        total += size
    assert row.end().at(0) == {"source": {"next": total}}
    done = 0
    for take in takes:
        count = min(take, total - done)
        if not count:
            break
        assert [number for part in row.peek(count) for number in part] == [
            *range(done, done + count)
        ]
        taken = row.take(count)
        assert [number for part in taken.windows for number in part] == [*range(done, done + count)]
        assert taken.positions.at(count) == {"source": {"next": done + count}}
        done += count
        assert row.mark().at(0) == {"source": {"next": done}}
        # A chunk weighs until its last element is taken.
        assert row.held == 10 * sum(len(chunk.elements) for chunk, _ in row.chunks)
        assert row.left == (row.chunks[0][0].elements[-1] + 1 - done if row.chunks else 0)
    assert row.last_weight == 10 * sizes[-1]


async def run_ready_tasks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_chunk_that_waits_for_room_goes_on_when_the_last_one_was_taken() -> None:
    """Also if that one weighed nothing: a chunk of any weight fits where none is left."""
    buffer = InputBuffer(10, Signal())
    await buffer.put(numbers_from(0, 2), weight=0)
    large = asyncio.create_task(buffer.put(numbers_from(2, 2), weight=50))
    await run_ready_tasks()
    assert not large.done()
    buffer.take(2)
    await asyncio.wait_for(large, 10)
    assert buffer.available == 2


async def test_a_failed_element_has_its_place_in_an_input() -> None:
    buffer = InputBuffer(1000, Signal())
    await buffer.put(numbers_from(0, 2), weight=1)
    await buffer.put(Chunk.failure(ValueError("bad"), NumberedPositions(2), 1), weight=1)
    await buffer.put(numbers_from(3, 4), weight=1)
    assert (buffer.available, buffer.has_failure) == (2, False)
    buffer.take(2)
    assert (buffer.available, buffer.has_failure) == (0, True)
    assert str(buffer.take_failure()) == "bad"
    assert (buffer.available, buffer.failures) == (4, 0)


async def test_a_queue_is_bounded_in_elements_too_and_counts_who_waited() -> None:
    queue = ByteQueue(1000, most_elements=3)
    await queue.put(numbers_from(0, 2), weight=1)
    more = asyncio.create_task(queue.put(numbers_from(2, 2), weight=1))
    await run_ready_tasks()
    assert (more.done(), queue.held, queue.refused) == (False, 1, 1)
    assert await queue.get() is not None
    await asyncio.wait_for(more, 10)
    queue.close(ValueError("closed"))
    assert queue.held == 0
    for _ in range(2):
        with pytest.raises(ValueError, match="closed"):
            await queue.get()


def test_the_queue_that_was_filled_ahead_takes_its_turn() -> None:
    coming = ComingShards(3, ["a"] * 9, Account("queues"))
    coming.known = 6
    ahead = list(coming.ahead(2))
    assert [queue.start.shard for queue in ahead] == [3, 4]
    assert [queue.start.shard for queue in coming.ahead(9)] == [3, 4, 5]
    assert [coming.take() for _ in range(2)] == ahead
    assert coming.next == 5
    assert [queue.start for queue in coming.ahead(9)] == [ShardStart(5)]
