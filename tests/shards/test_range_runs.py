"""Byte ranges for records of known offsets, and the check that the bytes are these records."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Frames, encode_records
from streamrec.shards.range_runs import (
    OFFSET_BITS,
    ByteRun,
    are_framed,
    byte_runs,
    bytes_equal,
    first_difference,
    group_ranges,
)

FRAME = 16
"""Bytes around each payload."""


def runs_of(places: list[tuple[int, int, int]], gap: int, most: int) -> list[ByteRun]:
    """The ranges for records, each a shard, an offset and the size of its payload."""
    shards, offsets, sizes = np.array(places, np.int64).T
    return byte_runs((shards << OFFSET_BITS) | offsets, sizes, gap, most)


def test_records_at_most_a_gap_apart_share_a_request() -> None:
    for distance, expected in (
        (50, [ByteRun(0, 0, 200, 0, 2)]),
        (51, [ByteRun(0, 0, 50, 0, 1), ByteRun(0, 101, 201, 1, 2)]),
    ):
        assert runs_of([(0, 0, 34), (0, 50 + distance, 84)], gap=50, most=1000) == expected


def test_a_request_ends_after_about_as_many_bytes() -> None:
    """A record that begins within `most` bytes belongs to it, and one at `most` bytes does not."""
    places = [(0, offset, 84) for offset in range(0, 1000, 100)]
    assert [(run.first, run.last) for run in runs_of(places, gap=0, most=300)] == [
        (0, 3),
        (3, 6),
        (6, 9),
        (9, 10),
    ]
    assert runs_of(places, gap=0, most=301)[0].last == 4
    assert len(runs_of(places, gap=0, most=1)) == len(places)


def test_the_end_of_a_shard_is_never_near_the_start_of_the_next() -> None:
    last = (1 << OFFSET_BITS) - 100
    assert runs_of([(0, last, 84), (1, 0, 84)], gap=1000, most=1 << 50) == [
        ByteRun(0, last, last + 100, 0, 1),
        ByteRun(1, 0, 100, 1, 2),
    ]


@given(data=st.data(), gap=st.integers(0, 60), most=st.integers(1, 400))
def test_each_range_holds_its_records_and_no_wider_gap(
    data: st.DataObject, gap: int, most: int
) -> None:
    steps = data.draw(
        st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), min_size=1, max_size=20)
    )
    places, at = [], 0
    for hole, size in steps:
        places.append((at // 400, at % 400 + hole, size))
        at = at // 400 * 400 + at % 400 + hole + size + FRAME
        at = at if at % 400 < 250 else (at // 400 + 1) * 400
    found = runs_of(places, gap, most)
    assert [index for run in found for index in range(run.first, run.last)] == list(
        range(len(places))
    )
    for run in found:
        own = places[run.first : run.last]
        assert {shard for shard, _, _ in own} == {run.shard}
        assert run.start == own[0][1]
        assert run.end == own[-1][1] + own[-1][2] + FRAME
        ends = [offset + size + FRAME for _, offset, size in own]
        assert all(next_[1] - end <= gap for end, next_ in zip(ends, own[1:], strict=False))
        assert len(own) == 1 or own[-1][1] - own[0][1] < most
    for run, following in zip(found, found[1:], strict=False):  # no request without need
        is_apart = run.shard != following.shard or following.start - run.end > gap
        assert is_apart or following.start - run.start >= most


def test_groups_of_one_range() -> None:
    ones = np.array([5], np.int64)
    assert list(group_ranges(ones, ones + 3, 0, 1)) == [(0, 1)]


RECORDS = [b"one", b"", b"three" * 20, b"4"]


def stored(change: Any = None) -> Frames:
    """Records as they are in a shard, in the middle of a buffer; `change` gets all its bytes."""
    before = encode_records([b"before"])
    data = bytearray(before + encode_records(RECORDS) + encode_records([b"after"]))
    starts = np.cumsum([0, *(len(record) + FRAME for record in RECORDS)]) + len(before) + 12
    spans = np.array(
        [(start, start + len(record)) for start, record in zip(starts, RECORDS, strict=False)]
    )
    if change is not None:
        change(data, int(spans[2, 0]))
    return Frames(bytes(data), spans)


def test_undamaged_records_have_no_difference() -> None:
    assert are_framed(stored())
    assert first_difference(stored()) is None


@pytest.mark.parametrize("place", [-12, -4, 0, 99, 100])
def test_the_first_damaged_record_is_found(place: int) -> None:
    """In the length, its CRC, the payload, and the payload's CRC of record 2."""

    def damage(data: bytearray, start: int) -> None:
        data[start + place] ^= 1

    frames = stored(damage)
    assert not are_framed(frames)
    assert first_difference(frames) == 2


@pytest.mark.parametrize("picked", [[0, 2], [1, 3], [3], [2, 3]])
def test_records_with_others_between_them_are_compared_too(picked: list[int]) -> None:
    def damage(data: bytearray, start: int) -> None:
        data[start] ^= 1

    whole, damaged = stored(), stored(damage)
    assert first_difference(Frames(whole.buffer, whole.spans[picked])) is None
    found = first_difference(Frames(damaged.buffer, damaged.spans[picked]))
    assert found == (picked.index(2) if 2 in picked else None)


def test_records_that_are_cut_elsewhere_are_not_framed() -> None:
    """The bytes are right, and the spans are not those of the records."""
    frames = stored()
    spans = frames.spans.copy()
    spans[1] = spans[1, 0] - 1, spans[1, 1] - 1
    assert first_difference(Frames(frames.buffer, spans)) == 1


def test_bytes_are_compared_in_any_buffer() -> None:
    assert bytes_equal(b"abc", memoryview(bytearray(b"xabc"))[1:])
    assert not bytes_equal(b"abc", bytearray(b"abd"))
    assert not bytes_equal(b"abc", b"abcd")
    assert bytes_equal(b"", b"")
