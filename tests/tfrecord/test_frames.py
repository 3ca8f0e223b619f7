"""Frames: a sequence of records over one buffer."""

import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Framer, Frames, VarLenFeature, encode_records, parse_example

RECORDS = [b"zero", b"", b"two\0", b"three" * 9]


@pytest.fixture
def frames() -> Frames:
    return Framer().feed(encode_records(RECORDS))


def test_is_a_sequence_of_bytes(frames: Frames) -> None:
    assert isinstance(frames, Sequence)
    assert list(frames) == RECORDS
    assert [frames[index] for index in range(4)] == RECORDS
    assert frames[-1] == RECORDS[-1]
    assert type(frames[2]) is bytes
    assert RECORDS[2] in frames
    with pytest.raises(IndexError):
        frames[4]


def test_slices_share_the_buffer(frames: Frames) -> None:
    part = frames[1:3]
    assert list(part) == RECORDS[1:3]
    assert part.buffer is frames.buffer
    assert part.start == frames.offset(1) == 20
    assert list(frames[::-2]) == RECORDS[::-2]
    assert len(frames[3:1]) == 0


def test_a_slice_that_would_pin_a_much_larger_buffer_copies() -> None:
    frames = Framer().feed(encode_records([b"small", b"x" * 1_000_000]))
    part = frames[:1]
    assert list(part) == [b"small"]
    assert memoryview(part.buffer).nbytes == 5
    assert frames[1:].buffer is frames.buffer
    assert frames.window(0, 1).buffer is frames.buffer


def test_offsets_follow_the_stream(frames: Frames) -> None:
    assert [frames.offset(index) for index in range(5)] == [0, 20, 36, 56, 117]
    with pytest.raises(ValueError, match="gathered"):
        frames.picked([1, 0]).offset(0)


def test_is_immutable(frames: Frames) -> None:
    with pytest.raises(ValueError, match="read-only"):
        frames.spans[0, 0] = 1
    with pytest.raises(TypeError):
        hash(frames)


def test_pickles_only_its_records(frames: Frames) -> None:
    again = pickle.loads(pickle.dumps(frames.window(1, 3)))
    assert list(again) == RECORDS[1:3]
    assert memoryview(again.buffer).nbytes == 4


def test_equality_is_by_records(frames: Frames) -> None:
    assert frames == Frames.of(RECORDS)
    assert frames != Frames.of(RECORDS[:-1])
    assert frames != "frames"


def test_says_what_it_is(frames: Frames) -> None:
    assert repr(frames) == "<Frames of 4 records, 53 bytes>"


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
def test_arrow(records: list[bytes]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    array = pyarrow.array(Framer().feed(encode_records(records)))  # with frames' headers between the payloads
    array.validate(full=True)
    assert array.type == pyarrow.large_binary()
    assert array.to_pylist() == records


def test_arrow_of_every_second_record() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    assert pyarrow.array(Frames.of([b"a", b"b", b"c", b"d"])[1::2]).to_pylist() == [b"b", b"d"]


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


def test_spans_of_another_dtype_are_no_spans() -> None:
    """Two int32s are no int64: they would be read as other numbers, and half as many."""
    with pytest.raises(TypeError, match="int64"):
        Frames(b"catdog", np.array([[0, 3], [3, 6]], np.int32)).__arrow_c_array__()  # type: ignore[arg-type]
