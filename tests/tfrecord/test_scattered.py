"""Scattered: Frames whose records lie in many buffers."""

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Frames
from streamrec.tfrecord import Scattered

LANES = [[b"a0", b"", b"a2"], [b"b0" * 9, b"b1\0"]]
IN_TURN = [b"a0", b"b0" * 9, b"", b"b1\0", b"a2"]


class UncopiedError(Exception):
    """Records were copied together."""


@pytest.fixture
def scattered() -> Scattered:
    return Scattered.in_turn([[Frames.of(lane)] for lane in LANES], 1)


@pytest.fixture
def uncopied(scattered: Scattered, monkeypatch: pytest.MonkeyPatch) -> Scattered:
    """Where to copy the records together is an error."""

    def refuse(*_: object) -> None:
        raise UncopiedError

    monkeypatch.setattr("streamrec.kernels.pick", refuse)
    return scattered


@st.composite
def lanes_in_turn(draw: st.DrawFn) -> tuple[list[list[list[bytes]]], int, list[bytes]]:
    """Lanes, each cut to windows; how many come in each turn; and all records in their order."""
    block, turns, count = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    last = draw(st.integers(0, count * block - 1))
    shares = [turns * block + min(max(last - lane * block, 0), block) for lane in range(count)]
    lanes = [[b"%d/%d" % (lane, index) for index in range(share)] for lane, share in enumerate(shares)]
    order = [one for turn in range(turns + 1) for lane in lanes for one in lane[turn * block : turn * block + block]]
    cuts = [sorted(draw(st.sets(st.integers(1, share), max_size=3)) | {0, share}) for share in shares]
    parts = [
        [lane[first:last] for first, last in zip(cut, cut[1:], strict=False)]
        for lane, cut in zip(lanes, cuts, strict=True)
    ]
    return parts, block, order


@given(lanes_in_turn())
def test_records_come_in_turn(drawn: tuple[list[list[list[bytes]]], int, list[bytes]]) -> None:
    lanes, block, order = drawn
    frames = Scattered.in_turn([[Frames.of(window) for window in lane] for lane in lanes], block)
    assert list(frames) == order
    assert frames == Frames.of(order)
    assert list(frames.compact()) == order


def test_looking_at_records_copies_nothing_together(uncopied: Scattered) -> None:
    assert isinstance(uncopied, Sequence)
    assert len(uncopied) == 5
    assert list(uncopied) == IN_TURN
    assert [uncopied[index] for index in range(-5, 0)] == IN_TURN
    assert [bytes(view) for view in uncopied.views()] == IN_TURN
    assert list(uncopied.window(1, 4)) == IN_TURN[1:4]
    assert list(uncopied[2:]) == IN_TURN[2:]
    assert list(uncopied[::-2]) == IN_TURN[::-2]
    assert uncopied.nbytes == uncopied.extent == sum(map(len, IN_TURN))
    assert repr(uncopied) == "<Frames of 5 records, 25 bytes>"
    with pytest.raises(IndexError):
        uncopied[5]
    with pytest.raises(UncopiedError):
        uncopied.compact()


def test_a_window_in_one_buffer_is_plain(uncopied: Scattered) -> None:
    frames = Scattered.in_turn([[Frames.of([b"a", b"b", b"c"])], [Frames.of([b"d", b"e"])]], 2)
    part = frames.window(0, 2)
    assert type(part) is Frames
    assert part.buffer is frames.buffers[0]
    assert list(part) == [b"a", b"b"]
    assert type(frames.window(0, 5)) is Scattered  # begins and ends in one buffer


def test_who_asks_for_one_buffer_gets_it_once(scattered: Scattered) -> None:
    buffer, spans = memoryview(scattered.buffer), scattered.spans
    assert [bytes(buffer[start:end]) for start, end in spans.tolist()] == IN_TURN
    assert scattered.buffer is scattered.buffer
    assert spans is scattered.spans
    with pytest.raises(ValueError, match="read-only"):
        spans[0, 0] = 1


def test_has_no_offsets(scattered: Scattered) -> None:
    assert scattered.start is None
    with pytest.raises(ValueError, match="gathered"):
        scattered.offset(0)


def test_a_slice_that_would_pin_much_larger_buffers_copies() -> None:
    frames = Scattered.in_turn([[Frames.of([b"small", b"x" * 1_000_000])], [Frames.of([b"y" * 1_000_000])]], 1)
    part = frames[:1]
    assert list(part) == [b"small"]
    assert part.pinned == 5
    assert isinstance(frames[1:], Scattered)


def test_pickles_as_frames(scattered: Scattered) -> None:
    again = pickle.loads(pickle.dumps(scattered.window(1, 3)))
    assert type(again) is Frames
    assert list(again) == IN_TURN[1:3]


def test_no_records_at_all() -> None:
    empty = Scattered([], np.empty((0, 4), np.int64))
    assert list(empty) == []
    assert list(empty.compact()) == []
    assert empty.nbytes == empty.extent == 0
