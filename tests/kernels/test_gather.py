"""gather, pick, objects, encode_frames and pad_rows: payloads copied, framed and filled up, bounds
checked.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernels
from streamrec.kernels import Int64s
from tests.kernels.streams import payloads_of, stream


def as_spans(pairs: list[list[int]] | list[tuple[int, int]]) -> Int64s:
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
def test_payloads_come_in_order(
    job: tuple[list[bytes], list[int], list[tuple[int, int]]], low: int
) -> None:
    """Back to back by their sources or by their rows, or as objects."""
    buffers, sources, spans = job
    chosen = np.array(sources, np.int64) if len(buffers) > 1 else None
    buffer, new = kernels.gather(buffers, chosen, as_spans(spans))
    expected = [
        buffers[source][start:end] for source, (start, end) in zip(sources, spans, strict=True)
    ]
    assert payloads_of(buffer, new) == expected
    assert buffer == b"".join(expected)
    assert type(buffer) is type(new) is bytes
    places = [
        [start, end, source << 32 | low, 9]
        for source, (start, end) in zip(sources, spans, strict=True)
    ]
    rows = np.array(places, np.int64).reshape(-1, 4)
    assert payloads_of(*kernels.pick(buffers, rows)) == kernels.objects(buffers, rows) == expected
    ours = [span for source, span in zip(sources, spans, strict=True) if source == 0]
    assert kernels.objects(buffers[:1], as_spans(ours)) == [
        buffers[0][start:end] for start, end in ours
    ]


def test_gather_takes_any_bytes_like_and_any_sequence() -> None:
    buffers = (bytearray(b"ab"), memoryview(b"cd"), np.frombuffer(b"ef", np.uint8))
    buffer, _ = kernels.gather(buffers, np.array([2, 0, 1]), as_spans([[0, 2]] * 3))
    assert buffer == b"efabcd"


def test_spans_need_not_be_aligned() -> None:
    raw = b"\0" + as_spans([[1, 3]]).tobytes()
    spans = np.frombuffer(raw, np.int64, offset=1).reshape(-1, 2)
    assert kernels.gather([b"abcd"], None, spans)[0] == b"bc"


@given(records=st.lists(st.binary(max_size=300), max_size=12))
def test_encode_objects(records: list[bytes]) -> None:
    ends = np.cumsum([0, *map(len, records)])
    spans = np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int64)
    framed = kernels.encode_frames(b"".join(records), spans)
    assert framed == stream(records)
    assert (
        bytes(kernels.encode_objects(records))
        == bytes(kernels.encode_block(b"".join(records), spans))
        == framed
    )
    with pytest.raises(TypeError, match="expected bytes, str found"):
        kernels.encode_objects([*records, "x"])


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
    rows = [
        values[first * width : last * width] for first, last in itertools.pairwise(splits.tolist())
    ]
    return b"".join(row + fill * (longest - len(row) // width) for row in rows)


@pytest.mark.parametrize("longest", [1000, 1001])
def test_a_large_result_is_the_same_however_its_rows_are_aligned(longest: int) -> None:
    """Numbers of eight bytes go past the cache from a megabyte on, in pairs where two lie
    together.
    """
    lengths = np.random.default_rng(1).integers(0, 1000, 200)
    lengths[:4] = 0, 1, 2, 1000
    splits = np.concatenate([[0], np.cumsum(lengths)])
    values, fill = np.arange(splits[-1]), np.full(1, -7)
    data = bytes(kernels.pad_rows(values, splits, longest, fill))
    assert len(data) > 1 << 20
    assert data == padded(values.tobytes(), splits, longest, fill.tobytes())


def test_a_large_result_is_writable() -> None:
    rows = np.frombuffer(kernels.pad_rows(b"abcd", np.arange(5), 1 << 16, b"."), np.uint8).reshape(
        4, -1
    )
    rows += 1
    assert rows[:, :2].tobytes() == b"b/c/d/e/"
