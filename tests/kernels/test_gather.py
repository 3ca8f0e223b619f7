"""gather and encode_frames: payloads copied and framed, bounds checked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernels
from tests.kernels.streams import cut, spans_of, stream

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


@given(job=jobs())
def test_gather_gives_the_payloads_back_to_back(job: tuple[list[bytes], list[int], list[tuple[int, int]]]) -> None:
    buffers, sources, spans = job
    buffer, new = kernels.gather(buffers, np.array(sources, np.int64), as_spans(spans))
    expected = [buffers[source][start:end] for source, (start, end) in zip(sources, spans, strict=True)]
    assert cut(buffer, new) == expected
    assert buffer == b"".join(expected)
    assert type(buffer) is type(new) is bytes


def test_gather_from_one_buffer() -> None:
    spans = as_spans([[2, 6], [0, 3], [6, 6], [2, 6]])
    buffer, new = kernels.gather([b"abcdef"], None, spans)
    assert buffer == b"cdefabccdef"
    assert spans_of(new).tolist() == [[0, 4], [4, 7], [7, 7], [7, 11]]


def test_gather_of_nothing() -> None:
    assert kernels.gather(BUFFERS, np.zeros(0, np.int64), as_spans([])) == (b"", b"")
    assert kernels.gather([], np.zeros(0, np.int64), as_spans([])) == (b"", b"")
    assert kernels.gather([b"abc"], None, as_spans([])) == (b"", b"")


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


@given(payloads=st.lists(st.binary(max_size=300), max_size=8))
def test_encode_frames(payloads: list[bytes]) -> None:
    ends = np.cumsum([0, *map(len, payloads)])
    spans = np.stack([ends[:-1], ends[1:]], 1)
    assert kernels.encode_frames(b"".join(payloads), spans) == stream(payloads)


def test_spans_need_not_be_aligned() -> None:
    raw = b"\0" + as_spans([[1, 3]]).tobytes()
    spans = np.frombuffer(raw, np.int64, offset=1).reshape(-1, 2)
    assert kernels.gather([b"abcd"], None, spans)[0] == b"bc"


@given(job=jobs())
def test_objects(job: tuple[list[bytes], list[int], list[tuple[int, int]]]) -> None:
    buffers, sources, spans = job
    rows = [(start, end, source << 32, 7) for source, (start, end) in zip(sources, spans, strict=True)]
    expected = [buffers[source][start:end] for source, (start, end) in zip(sources, spans, strict=True)]
    assert kernels.objects(buffers, np.array(rows, np.int64).reshape(-1, 4)) == expected
    ours = [span for source, span in zip(sources, spans, strict=True) if source == 0]
    assert kernels.objects(buffers[:1], as_spans(ours)) == [buffers[0][start:end] for start, end in ours]


@pytest.mark.parametrize("span", OUTSIDE)
def test_objects_lie_in_their_buffers(span: list[int]) -> None:
    with pytest.raises(ValueError, match="record 1 does not lie"):
        kernels.objects(BUFFERS, as_spans([[0, 1], span]))
    with pytest.raises(ValueError, match="record 0 does not lie"):
        kernels.objects(BUFFERS, np.array([[0, 0, 3 << 32, 0]]))


@given(records=st.lists(st.binary(max_size=300), max_size=12))
def test_encode_objects(records: list[bytes]) -> None:
    ends = np.cumsum([0, *map(len, records)])
    spans = np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int64)
    framed = kernels.encode_frames(b"".join(records), spans)
    assert bytes(kernels.encode_objects(records)) == bytes(kernels.encode_block(b"".join(records), spans)) == framed
    with pytest.raises(TypeError, match="expected bytes, str found"):
        kernels.encode_objects([*records, "x"])
