"""The buffer between a generator and its consumer: its room, and who waits for whom."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.sources.element_buffer import ElementBuffer, Item, MakerRoom


@given(
    limit=st.integers(0, 50),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=30),
)
def test_room_is_full_while_the_limit_or_more_waits(
    limit: int, steps: list[tuple[bool, int]]
) -> None:
    room = MakerRoom(limit)
    waiting = 0
    for enters, nbytes in steps:
        if enters:
            waiting += nbytes
            assert room.enter(nbytes) == (waiting >= max(1, limit))
        else:
            nbytes = min(nbytes, waiting)
            waiting -= nbytes
            room.leave(nbytes)
        assert room.full == (waiting >= max(1, limit))
    room.open()
    assert not room.full
    assert not room.enter(1 << 40)


async def test_a_maker_in_a_thread_waits_for_room_and_then_for_nothing() -> None:
    buffer = ElementBuffer(10)
    item: Item = ("element", 6, None)
    assert await asyncio.to_thread(buffer.add, item)
    waiting = asyncio.create_task(asyncio.to_thread(buffer.add, item))
    taken = await buffer.take() or []
    while len(taken) < 2:  # the second one may be added after the first was taken
        taken += await buffer.take() or []
    assert await waiting
    assert taken == [item, item]
    buffer.close()
    assert not await asyncio.to_thread(buffer.add, ("element", 99, None))


async def test_all_elements_come_before_the_error_that_ended_them_once() -> None:
    buffer = ElementBuffer(10)
    await buffer.add_async((1, 1, None))
    buffer.end(ValueError("broken"))
    assert await buffer.take() == [(1, 1, None)]
    with pytest.raises(ValueError, match="broken"):
        await buffer.take()
    assert await buffer.take() is None
