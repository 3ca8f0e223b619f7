"""Frames and Scattered: sequences of records over one buffer or many, and how they become one."""

import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Framer, Frames, VarLenFeature, encode_records, parse_example
from streamrec.tfrecord import SCATTERED_BYTES, Scattered, join_frames
from tests.kernels.test_interleave import Window, jobs, records_in_turn

RECORDS = [b"zero", b"", b"two\0", b"three" * 9]


@pytest.fixture
def frames() -> Frames:
    return Framer().feed(encode_records(RECORDS))


@pytest.fixture
def scattered() -> Scattered:
    return Scattered.in_turn([[Frames.of(RECORDS[::2])], [Frames.of(RECORDS[1::2])]], 1)


@pytest.fixture(params=["frames", "scattered"])
def frames_or_scattered(request: pytest.FixtureRequest) -> Frames:
    """The records in one buffer, or in two."""
    found: Frames = request.getfixturevalue(request.param)
    return found


class UncopiedError(Exception):
    """Records were copied together."""


def test_they_are_a_sequence_of_bytes_and_looking_copies_nothing_together(
    frames_or_scattered: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UncopiedError

    monkeypatch.setattr("streamrec.kernels.pick", refuse)
    assert isinstance(frames_or_scattered, Sequence)
    assert len(frames_or_scattered) == 4
    assert (
        list(frames_or_scattered)
        == [frames_or_scattered[index] for index in range(-4, 0)]
        == [*map(bytes, frames_or_scattered.views())]
        == RECORDS
    )
    assert type(frames_or_scattered[2]) is bytes
    assert RECORDS[2] in frames_or_scattered
    for first, last in ((1, 4), (1, 3), (3, 1)):
        assert list(frames_or_scattered[first:last]) == RECORDS[first:last]
    assert list(frames_or_scattered.window(1, 3)) == RECORDS[1:3]
    assert list(frames_or_scattered[::-2]) == RECORDS[::-2]
    assert frames_or_scattered.nbytes == sum(map(len, RECORDS))
    assert repr(frames_or_scattered) == "<Frames of 4 records, 53 bytes>"
    with pytest.raises(IndexError):
        frames_or_scattered[4]
    if isinstance(frames_or_scattered, Scattered):
        with pytest.raises(UncopiedError):
            frames_or_scattered.compact()


def test_equality_is_by_records(frames_or_scattered: Frames) -> None:
    assert frames_or_scattered == Frames.of(RECORDS)
    assert frames_or_scattered != Frames.of(RECORDS[:-1])
    assert frames_or_scattered != "frames"
    with pytest.raises(TypeError):
        hash(frames_or_scattered)


def test_spans_are_read_only(frames_or_scattered: Frames) -> None:
    assert [
        bytes(memoryview(frames_or_scattered.buffer)[start:end])
        for start, end in frames_or_scattered.spans.tolist()
    ] == RECORDS
    with pytest.raises(ValueError, match="read-only"):
        frames_or_scattered.spans[0, 0] = 1


def test_pickles_hold_only_their_records(frames_or_scattered: Frames) -> None:
    again = pickle.loads(pickle.dumps(frames_or_scattered.window(1, 3)))
    assert type(again) is Frames
    assert list(again) == RECORDS[1:3]
    assert memoryview(again.buffer).nbytes == 4


def test_slices_share_the_buffer(frames: Frames) -> None:
    part = frames[1:3]
    assert part.buffer is frames.buffer
    assert part.start == frames.offset(1) == 20


def test_a_slice_that_would_pin_a_much_larger_buffer_copies() -> None:
    frames = Framer().feed(encode_records([b"small", b"x" * 1_000_000]))
    part = frames[:1]
    assert list(part) == [b"small"]
    assert memoryview(part.buffer).nbytes == 5
    assert frames[1:].buffer is frames.buffer
    assert frames.window(0, 1).buffer is frames.buffer


def test_offsets_follow_the_stream(frames: Frames, scattered: Scattered) -> None:
    assert [frames.offset(index) for index in range(5)] == [0, 20, 36, 56, 117]
    assert scattered.start is None
    for gathered in (frames.take([1, 0]), scattered):
        with pytest.raises(ValueError, match="come from several places"):
            gathered.offset(0)


@given(st.lists(st.binary(max_size=20)), st.slices(12))
def test_slices_as_lists_do(records: list[bytes], index: slice) -> None:
    assert list(Frames.of(records)[index]) == records[index]


def test_takes_any_buffer() -> None:
    for buffer in (
        b"catdog",
        bytearray(b"catdog"),
        memoryview(b"catdog"),
        np.frombuffer(b"catdog", np.uint8),
    ):
        frames = Frames(buffer, np.array([[0, 3], [3, 6]]))
        assert list(frames) == [b"cat", b"dog"]
        assert list(frames.compact()) == [b"cat", b"dog"]


@given(st.lists(st.binary(max_size=40)))
def test_frames_become_an_arrow_array(records: list[bytes]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    array = pyarrow.array(
        Framer().feed(encode_records(records))
    )  # with frames' headers between the payloads
    array.validate(full=True)
    assert array.type == pyarrow.large_binary()
    assert array.to_pylist() == records


@pytest.mark.parametrize("span", [[-3, 6], [0, 7], [0, 2**62], [4, 3], [-6, -3]])
def test_spans_that_leave_the_buffer_give_nothing(span: list[int]) -> None:
    frames = Frames(b"catdog", np.array([[0, 3], span]))
    reads: list[Callable[[], object]] = [
        lambda: frames[1],
        lambda: list(frames),
        lambda: list(frames.views()),
        lambda: frames.compact(),
        lambda: frames._repr_html_(),
        lambda: parse_example(frames, {"x": VarLenFeature("int64")}),
        lambda: encode_records(frames),
        lambda: frames.__arrow_c_array__(),
    ]
    for read in reads:
        with pytest.raises(ValueError):
            read()


def test_spans_of_another_dtype_are_not_spans() -> None:
    """Two int32s are no int64: they would be read as other numbers, and half as many."""
    with pytest.raises(TypeError, match="int64"):
        Frames(b"catdog", np.array([[0, 3], [3, 6]], np.int32)).__arrow_c_array__()  # type: ignore[arg-type]


@given(jobs())
def test_records_come_in_turn(job: tuple[list[list[bytes]], int, list[list[Window]]]) -> None:
    queues, block, windows = job
    order = records_in_turn(queues, block)
    frames = Scattered.in_turn([[Frames(*part) for part in queue] for queue in windows], block)
    assert list(frames) == order
    assert frames == Frames.of(order)
    assert list(frames.compact()) == order


def test_a_window_in_one_buffer_is_plain() -> None:
    frames = Scattered.in_turn([[Frames.of([b"a", b"b", b"c"])], [Frames.of([b"d", b"e"])]], 2)
    part = frames.window(0, 2)
    assert type(part) is Frames
    assert part.buffer is frames.buffers[0]
    assert list(part) == [b"a", b"b"]
    assert type(frames.window(0, 5)) is Scattered  # begins and ends in one buffer


def test_one_buffer_is_made_once(scattered: Scattered) -> None:
    assert scattered.buffer is scattered.buffer
    assert scattered.spans is scattered.spans


def test_a_slice_that_would_pin_much_larger_buffers_copies() -> None:
    frames = Scattered.in_turn(
        [[Frames.of([b"small", b"x" * 1_000_000])], [Frames.of([b"y" * 1_000_000])]], 1
    )
    part = frames[:1]
    assert list(part) == [b"small"]
    assert part.pinned == 5
    assert isinstance(frames[1:], Scattered)


def test_no_records_at_all() -> None:
    empty = Scattered([], np.empty((0, 4), np.int64))
    assert list(empty) == []
    assert list(empty.compact()) == []
    assert empty.nbytes == empty.extent == 0


LONG = [bytes([number]) * (SCATTERED_BYTES + number) for number in range(6)]
SHORT = [b"a", b"", b"ccc", b"dd"]

parts_of_records = st.lists(st.lists(st.binary(max_size=8)), max_size=6)


def joined_records(*parts: Frames) -> Frames:
    frames = join_frames([parts])
    assert len(frames) == sum(map(len, parts))
    return frames


def scattered_records(records: list[bytes]) -> Scattered:
    """Each record in a buffer of its own."""
    return Scattered.in_turn([[Frames.of([record]) for record in records]], 1)


def pinned_by_one(records: list[bytes]) -> Frames:
    """The first of some records that lie in one buffer."""
    return Frames.of(records).window(0, 1)


@given(parts_of_records, st.booleans(), st.integers(1, 40))
def test_joining_keeps_order(parts: list[list[bytes]], long: bool, gathers: int) -> None:
    """Whether records are short or long, and come in one buffer or in many."""
    grown = [[one + bytes(SCATTERED_BYTES * long) for one in part] for part in parts]
    came = [
        scattered_records(part) if number % gathers == 0 and part else Frames.of(part)
        for number, part in enumerate(grown)
    ]
    assert list(joined_records(*came)) == [one for part in grown for one in part]


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=9), st.booleans(), st.data())
def test_records_that_were_picked_in_any_order(
    records: list[bytes], long: bool, data: st.DataObject
) -> None:
    records = [one + bytes(SCATTERED_BYTES * long) for one in records]
    order = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=12))
    frames = joined_records(
        Frames.of([b"first"]),
        Frames.of(records).take(np.array(order, np.int64)),
        Frames.of([b"last"]),
    )
    assert list(frames) == [b"first", *(records[index] for index in order), b"last"]


def test_short_records_are_copied_to_one_buffer() -> None:
    first, second = Frames.of(SHORT), Frames.of(SHORT)
    frames = joined_records(first, second)
    assert list(frames) == SHORT + SHORT
    assert type(frames) is Frames
    with pytest.raises(ValueError, match="come from several places"):
        frames.offset(0)
    assert not np.shares_memory(
        np.frombuffer(frames.buffer, np.uint8), np.frombuffer(first.buffer, np.uint8)
    )


def test_long_records_stay_in_their_buffers() -> None:
    first, second = Frames.of(LONG), Frames.of(LONG[:3])
    frames = joined_records(first, scattered_records(LONG[3:]), second)
    assert list(frames) == [*LONG, *LONG[3:], *LONG[:3]]
    assert isinstance(frames, Scattered)
    assert frames.buffers[0] is first.buffer
    assert frames.buffers[-1] is second.buffer


@pytest.mark.parametrize("count", [2, 3])
def test_long_records_out_of_a_large_buffer_are_copied(count: int) -> None:
    """One of two in a buffer may keep it alive; one of three gets a buffer of its own."""
    record = bytes(SCATTERED_BYTES)
    frames = joined_records(pinned_by_one([record] * count), Frames.of([record]))
    assert list(frames) == [record, record]
    assert frames.pinned == (3 if count == 2 else 2) * SCATTERED_BYTES
