"""Joining: stretches of records that become one Frames, copied or not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Frames
from streamrec.tfrecord import SCATTERED_BYTES, Joining, Scattered

LONG = [bytes([number]) * (SCATTERED_BYTES + number) for number in range(6)]
SHORT = [b"a", b"", b"ccc", b"dd"]

stretches = st.lists(st.lists(st.binary(max_size=8)), max_size=6)


def joined(*parts: Frames) -> Frames:
    joining = Joining(sum(map(len, parts)))
    for part in parts:
        joining.add(part)
    assert len(joining) == sum(map(len, parts))
    return joining.frames()


def scattered(records: list[bytes]) -> Scattered:
    """Each record in a buffer of its own."""
    return Scattered.joining([Frames.of([record]) for record in records])


def pinned_by_one(records: list[bytes]) -> Frames:
    """The first of some records that lie in one buffer."""
    return Frames.of(records).window(0, 1)


@given(stretches, st.booleans(), st.integers(1, 40))
def test_keeps_order(parts: list[list[bytes]], long: bool, gathers: int) -> None:
    """Whether records are short or long, and come in one buffer or in many."""
    grown = [[one + bytes(SCATTERED_BYTES * long) for one in part] for part in parts]
    came = [scattered(part) if number % gathers == 0 and part else Frames.of(part) for number, part in enumerate(grown)]
    assert list(joined(*came)) == [one for part in grown for one in part]


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=9), st.booleans(), st.data())
def test_records_that_were_picked_in_any_order(records: list[bytes], long: bool, data: st.DataObject) -> None:
    records = [one + bytes(SCATTERED_BYTES * long) for one in records]
    order = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=12))
    frames = joined(Frames.of([b"first"]), Frames.of(records).picked(np.array(order, np.int64)), Frames.of([b"last"]))
    assert list(frames) == [b"first", *(records[index] for index in order), b"last"]


def test_without_records() -> None:
    assert list(joined()) == list(joined(Frames.of(()))) == []


def test_short_records_are_copied_to_one_buffer() -> None:
    first, second = Frames.of(SHORT), Frames.of(SHORT)
    frames = joined(first, second)
    assert list(frames) == SHORT + SHORT
    assert type(frames) is Frames
    with pytest.raises(ValueError, match="gathered"):
        frames.offset(0)
    assert not np.shares_memory(np.frombuffer(frames.buffer, np.uint8), np.frombuffer(first.buffer, np.uint8))


def test_long_records_stay_where_they_lie() -> None:
    first, second = Frames.of(LONG), Frames.of(LONG[:3])
    frames = joined(first, scattered(LONG[3:]), second)
    assert list(frames) == [*LONG, *LONG[3:], *LONG[:3]]
    assert isinstance(frames, Scattered)
    assert frames.buffers[0] is first.buffer
    assert frames.buffers[-1] is second.buffer


def test_one_stretch_stays_as_it_is() -> None:
    only = Frames.of(LONG)
    assert joined(only) is only


@pytest.mark.parametrize("count", [2, 3])
def test_long_records_out_of_a_large_buffer_are_copied(count: int) -> None:
    """One of two in a buffer may keep it alive; one of three gets a buffer of its own."""
    record = bytes(SCATTERED_BYTES)
    frames = joined(pinned_by_one([record] * count), Frames.of([record]))
    assert list(frames) == [record, record]
    assert frames.pinned == (3 if count == 2 else 2) * SCATTERED_BYTES
