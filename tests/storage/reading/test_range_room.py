"""Room for ranges ahead of their streams' positions, and the blocks that fill it."""

from streamrec.storage.backend import BLOCK_BYTES
from streamrec.storage.ledger import AllRuns, Ledger
from streamrec.storage.range_room import SLAB_BYTES, BlockPool, RangeRoom


def test_half_of_what_is_promised_has_room() -> None:
    """An eighth of a stream's part is kept for urgent ranges."""
    room = RangeRoom(80)
    stream = room.open("stream")
    assert room.try_promise(stream, 140, streams=1, urgent=False)
    assert (stream.promised, room.promised) == (140, 140)
    assert not room.try_promise(stream, 2, streams=1, urgent=False)
    assert room.try_promise(stream, 20, streams=1, urgent=True)
    stream.withdraw(160)
    assert (stream.promised, room.promised) == (0, 0)


def test_a_stream_reserves_within_its_part() -> None:
    room = RangeRoom(160)
    one, other = room.open("one"), room.open("other")
    assert room.try_reserve(one, 70, streams=2, urgent=False)
    assert not room.try_reserve(one, 1, streams=2, urgent=False)
    assert room.try_reserve(one, 10, streams=2, urgent=True)
    assert not room.try_reserve(one, 1, streams=2, urgent=True)
    assert room.try_reserve(other, 70, streams=2, urgent=False)
    assert (one.held, other.held, room.held) == (80, 70, 150)
    one.release(80)
    assert (one.held, room.held) == (0, 70)


def test_all_streams_together_stay_within_the_limit() -> None:
    room = RangeRoom(100)
    one, other = room.open("one"), room.open("other")
    assert room.try_reserve(one, 80, streams=1, urgent=True)
    assert not room.try_reserve(other, 21, streams=1, urgent=True)
    assert not room.try_promise(other, 42, streams=1, urgent=True)
    room.widen(1)
    assert room.try_reserve(other, 21, streams=1, urgent=True)
    assert not room.try_promise(other, 2, streams=1, urgent=True)


def test_the_budget_of_a_run_limits_the_room_for_ranges() -> None:
    room = RangeRoom(100)
    stream = room.open("stream")
    Ledger(9, runs=AllRuns()).adopt(room)
    assert not room.try_reserve(stream, 10, streams=1, urgent=True)
    assert room.try_reserve(stream, 9, streams=1, urgent=True)
    assert room.held == 9


def test_blocks_are_memory_of_their_own_and_are_used_again() -> None:
    pool = BlockPool()
    blocks = [pool.take() for _ in range(3 * SLAB_BYTES // BLOCK_BYTES)]
    for number, block in enumerate(blocks):
        assert len(block) == BLOCK_BYTES
        block[:] = bytes([number]) * BLOCK_BYTES
    assert all(set(block[::4096]) == {number} for number, block in enumerate(blocks))
    pool.give_back(blocks[0])
    assert pool.take() is blocks[0]
    pool.give_back(blocks[1])
    pool.clear()
    assert pool.take() is not blocks[1]
