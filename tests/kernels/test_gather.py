"""gather, pick, objects, encode_frames and pad_rows: payloads copied, framed and filled up, bounds checked."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernels
from tests.kernels.streams import cut, stream

BUFFERS = [b"abcdef", b"", bytes(range(256))]
OUTSIDE = [[-1, 2], [0, 7], [4, 3], [7, 7], [-(2**63), 2**63 - 1], [2**63 - 1, -(2**63)], [0, 2**63 - 1]]


def as_spans(
    pairs: list[list[int]] | list[tuple[int, int]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(pairs, np.int64).reshape(-1, 2)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[bytes], list[int], list[tuple[int, int]]]:
    buffers = draw(st.lists(st.binary(max_size=300), min_size=1, max_size=4))
    sources, spans = [], []
    for _ in range(draw(st.integers(0, 12))):
        source = draw(st.integers(0, len(buffers) - 1))
        start = draw(st.integers(0, len(buffers[source])))
        sources.append(source)
        spans.append((start, draw(st.integers(start, len(buffers[source])))))
    return buffers, sources, spans


@given(job=jobs(), low=st.integers(0, 2**32 - 1))
def test_payloads_come_in_order(job: tuple[list[bytes], list[int], list[tuple[int, int]]], low: int) -> None:
    """Back to back by their sources or by their rows, or as objects."""
    buffers, sources, spans = job
    chosen = np.array(sources, np.int64) if len(buffers) > 1 else None
    buffer, new = kernels.gather(buffers, chosen, as_spans(spans))
    expected = [buffers[source][start:end] for source, (start, end) in zip(sources, spans, strict=True)]
    assert cut(buffer, new) == expected
    assert buffer == b"".join(expected)
    assert type(buffer) is type(new) is bytes
    places = [[start, end, source << 32 | low, 9] for source, (start, end) in zip(sources, spans, strict=True)]
    rows = np.array(places, np.int64).reshape(-1, 4)
    assert cut(*kernels.pick(buffers, rows)) == kernels.objects(buffers, rows) == expected
    ours = [span for source, span in zip(sources, spans, strict=True) if source == 0]
    assert kernels.objects(buffers[:1], as_spans(ours)) == [buffers[0][start:end] for start, end in ours]


def test_gather_takes_any_bytes_like_and_any_sequence() -> None:
    buffers = (bytearray(b"ab"), memoryview(b"cd"), np.frombuffer(b"ef", np.uint8))
    buffer, _ = kernels.gather(buffers, np.array([2, 0, 1]), as_spans([[0, 2]] * 3))
    assert buffer == b"efabcd"


@pytest.mark.parametrize("span", OUTSIDE)
def test_a_span_outside_of_its_buffer(span: list[int]) -> None:
    spans = as_spans([[0, 6], span])
    words = rf"span 1 is \[{span[0]}, {span[1]}\): wanted 0 <= start <= end <= 6, the buffer's size"
    with pytest.raises(ValueError, match=words):
        kernels.gather([b"abcdef"], None, spans)
    with pytest.raises(ValueError, match=words):
        kernels.gather(BUFFERS, np.array([0, 0]), spans)
    with pytest.raises(ValueError, match=words):
        kernels.encode_frames(b"abcdef", spans)


@pytest.mark.parametrize("source", [-1, 3, 2**63 - 1, -(2**63)])
def test_a_source_that_is_none(source: int) -> None:
    with pytest.raises(ValueError, match=rf"source 1 is {source}: wanted 0 <= source < 3"):
        kernels.gather(BUFFERS, np.array([0, source]), as_spans([[0, 1], [0, 0]]))


def test_arguments_that_do_not_fit_together() -> None:
    with pytest.raises(ValueError, match="found 3 buffers"):
        kernels.gather(BUFFERS, None, as_spans([]))
    with pytest.raises(ValueError, match="found 0 buffers"):
        kernels.gather([], None, as_spans([]))
    with pytest.raises(ValueError, match="found 1 sources for 2 spans"):
        kernels.gather(BUFFERS, np.array([0]), as_spans([[0, 1], [0, 1]]))


def test_spans_need_not_be_aligned() -> None:
    raw = b"\0" + as_spans([[1, 3]]).tobytes()
    spans = np.frombuffer(raw, np.int64, offset=1).reshape(-1, 2)
    assert kernels.gather([b"abcd"], None, spans)[0] == b"bc"


@pytest.mark.parametrize("span", OUTSIDE[:3])
def test_pick_outside_of_a_buffer(span: list[int]) -> None:
    words = rf"row 1 is \[{span[0]}, {span[1]}\): wanted 0 <= start <= end <= 6, its buffer"
    with pytest.raises(ValueError, match=words):
        kernels.pick(BUFFERS, np.array([[0, 6, 0, 0], [*span, 0, 0]]))


@pytest.mark.parametrize("buffer", [-1, 3])
def test_pick_of_a_buffer_that_is_none(buffer: int) -> None:
    with pytest.raises(ValueError, match=rf"row 0 lies in buffer {buffer}: wanted 0 <= buffer < 3"):
        kernels.pick(BUFFERS, np.array([[0, 0, buffer << 32, 0]]))


@pytest.mark.parametrize("span", OUTSIDE)
def test_objects_are_inside_their_buffers(span: list[int]) -> None:
    with pytest.raises(ValueError, match="record 1 does not lie"):
        kernels.objects(BUFFERS, as_spans([[0, 1], span]))
    with pytest.raises(ValueError, match="record 0 does not lie"):
        kernels.objects(BUFFERS, np.array([[0, 0, 3 << 32, 0]]))


@given(records=st.lists(st.binary(max_size=300), max_size=12))
def test_encode_objects(records: list[bytes]) -> None:
    ends = np.cumsum([0, *map(len, records)])
    spans = np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int64)
    framed = kernels.encode_frames(b"".join(records), spans)
    assert framed == stream(records)
    assert bytes(kernels.encode_objects(records)) == bytes(kernels.encode_block(b"".join(records), spans)) == framed
    with pytest.raises(TypeError, match="expected bytes, str found"):
        kernels.encode_objects([*records, "x"])


def splits_of(*splits: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(splits, np.int64)


@st.composite
def paddings(draw: st.DrawFn) -> tuple[bytes, Any, int, bytes]:
    width = draw(st.sampled_from([1, 3, 4, 8, 16]))
    lengths = draw(st.lists(st.integers(0, 9), max_size=12))
    values = draw(st.binary(min_size=sum(lengths) * width, max_size=sum(lengths) * width))
    longest = max(lengths, default=0) + draw(st.integers(0, 3))
    fill = draw(st.binary(min_size=width, max_size=width))
    return values, np.cumsum([0, *lengths], dtype=np.int64), longest, fill


@given(job=paddings())
def test_rows_are_filled_up(job: tuple[bytes, Any, int, bytes]) -> None:
    """Each row begins with its elements; all else is the fill."""
    assert bytes(kernels.pad_rows(*job)) == padded(*job)


def padded(values: bytes, splits: Any, longest: int, fill: bytes) -> bytes:
    width = len(fill)
    rows = [values[first * width : last * width] for first, last in itertools.pairwise(splits.tolist())]
    return b"".join(row + fill * (longest - len(row) // width) for row in rows)


@pytest.mark.parametrize("longest", [1000, 1001])
def test_a_large_result_is_the_same_however_its_rows_are_aligned(longest: int) -> None:
    """Numbers of eight bytes go past the cache from a megabyte on, in pairs where two lie together."""
    lengths = np.random.default_rng(1).integers(0, 1000, 200)
    lengths[:4] = 0, 1, 2, 1000
    splits = np.concatenate([[0], np.cumsum(lengths)])
    values, fill = np.arange(splits[-1]), np.full(1, -7)
    data = bytes(kernels.pad_rows(values, splits, longest, fill))
    assert len(data) > 1 << 20
    assert data == padded(values.tobytes(), splits, longest, fill.tobytes())


def test_a_large_result_is_writable() -> None:
    rows = np.frombuffer(kernels.pad_rows(b"abcd", splits_of(*range(5)), 1 << 16, b"."), np.uint8).reshape(4, -1)
    rows += 1
    assert rows[:, :2].tobytes() == b"b/c/d/e/"


@pytest.mark.parametrize(
    "splits",
    [[0, 7], [-1, 2], [0, 2, 1], [0, 5], [2**63 - 1, -(2**63)], [-(2**63), 2**63 - 1]],
    ids=str,
)
def test_rows_that_do_not_fit(splits: list[int]) -> None:
    with pytest.raises(ValueError, match=r"row \d is \[.*\): wanted up to 4 of 6 elements"):
        kernels.pad_rows(b"abcdef", splits_of(*splits), 4, b".")


@pytest.mark.parametrize(
    ("values", "splits", "fill"), [(b"abc", [], b"."), (b"abc", [0, 1], b""), (b"abc", [0, 1], b"..")]
)
def test_paddings_that_do_not_fit_together(values: bytes, splits: list[int], fill: bytes) -> None:
    with pytest.raises(ValueError, match="wanted at least one split, and whole elements"):
        kernels.pad_rows(values, splits_of(*splits), 4, fill)


@pytest.mark.parametrize("splits", [[0, 1], np.zeros(2, np.int32), None])
def test_no_splits(splits: Any) -> None:
    with pytest.raises(TypeError):
        kernels.pad_rows(b"abc", splits, 4, b".")


def test_more_than_there_is_memory() -> None:
    """The size overflows: no memory, and nothing written."""
    with pytest.raises(MemoryError):
        kernels.pad_rows(b"", splits_of(0, 0, 0, 0), 2**62, bytes(8))
