"""interleave and rows_in_turn: payloads of many queues in the order of their turns, copied, or
named where they lie.
"""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernels
from tests.kernels.streams import payloads_of

Window = tuple[bytes, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]


def as_window(payloads: list[bytes], gap: bytes = b"") -> Window:
    ends = np.cumsum([len(gap) + len(payload) for payload in payloads], dtype=np.int64)
    lengths = np.array([len(payload) for payload in payloads], np.int64)
    return b"".join(gap + payload for payload in payloads), np.stack([ends - lengths, ends], 1)


def records_in_turn(queues: list[list[bytes]], block: int) -> list[bytes]:
    """The order by its definition."""
    count, ordered = sum(map(len, queues)), []
    for queue in itertools.cycle([iter(queue) for queue in queues] or [iter(())]):
        if len(ordered) == count:
            break
        turn = list(itertools.islice(queue, min(block, count - len(ordered))))
        ordered += turn
        if len(turn) < block and len(ordered) < count:
            raise ValueError(
                f"the queue whose turn it is has no record after {len(ordered)} of {count}: each "
                "queue must hold what "
                f"its turns of {block} take"
            )
    return ordered


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[list[bytes]], int, list[list[Window]]]:
    """Queues that hold what their turns take, and the windows that they were cut in."""
    count = draw(st.integers(1, 4))
    block = draw(st.integers(1, 3))
    rounds = draw(st.integers(0, 3))
    rest = draw(st.integers(0, count * block - 1))
    queues, windows = [], []
    for index in range(count):
        size = rounds * block + min(max(rest - index * block, 0), block)
        queue = draw(st.lists(st.binary(max_size=40), min_size=size, max_size=size))
        edges = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=2))})
        gap = draw(st.sampled_from([b"", b"-", b"0123456789ab"]))
        windows.append([as_window(queue[a:b], gap) for a, b in itertools.pairwise(edges)])
        queues.append(queue)
    return queues, block, windows


@given(job=jobs(), drop=st.none() | st.integers(0, 3))
def test_gives_the_payloads_in_turn(
    job: tuple[list[list[bytes]], int, list[list[Window]]], drop: int | None
) -> None:
    """Copied, and as rows; also where a queue lacks records: an error, after the same number of
    records.
    """
    queues, block, windows = job
    if drop is not None:
        at = drop % len(windows)
        windows[at] = windows[at][:drop]
        queues[at] = [
            buffer[start:end] for buffer, spans in windows[at] for start, end in spans.tolist()
        ]
    parts, buffers = as_parts(windows)
    try:
        wanted = records_in_turn(queues, block)
    except ValueError as error:
        for call in (
            lambda: kernels.interleave(windows, block),
            lambda: kernels.rows_in_turn(parts, block),
        ):
            with pytest.raises(ValueError, match=re.escape(str(error))):
                call()
        return
    buffer, spans = kernels.interleave(windows, block)
    assert payloads_of(buffer, spans) == wanted
    assert bytes(buffer) == b"".join(wanted)
    rows = np.frombuffer(memoryview(kernels.rows_in_turn(parts, block)), np.int64).reshape(-1, 4)
    assert [buffers[tag >> 32][start:end] for start, end, tag, _ in rows.tolist()] == wanted
    were_rows = [tag > 0 and buffers[(tag >> 32) - 1] == b"nobody's" for tag in rows[:, 2].tolist()]
    assert rows[:, 3].tolist() == [7 * was for was in were_rows]


def test_large_results_live_in_blocks() -> None:
    queues = [[bytes([queue]) * 50 for _ in range(3000)] for queue in range(3)]
    buffer, spans = kernels.interleave(
        [[as_window(queue[:7]), as_window(queue[7:])] for queue in queues], 2
    )
    assert payloads_of(buffer, spans) == records_in_turn(queues, 2)


def test_no_records_in_turn_are_no_bytes() -> None:
    for queues in ([], [[]], [[], [as_window([])]]):
        assert [bytes(part) for part in kernels.interleave(queues, 1)] == [b"", b""]
        assert bytes(kernels.rows_in_turn(as_parts(queues)[0], 1)) == b""


def as_parts(windows: list[list[Window]]) -> tuple[list[list[tuple[np.ndarray, int]]], list[bytes]]:
    """The windows' spans with the numbers of their buffers, every second one as rows; and the
    buffers.
    """
    buffers: list[bytes] = []
    parts = []
    for queue in windows:
        numbered = []
        for buffer, spans in queue:
            number = len(buffers)
            if number % 2:
                buffers += [b"nobody's", buffer]
                rows = np.concatenate([spans, np.full((len(spans), 2), [1 << 32, 7])], 1)
                numbered.append((rows, number))
            else:
                buffers.append(buffer)
                numbered.append((spans, number))
        parts.append(numbered)
    return parts, buffers


def test_rows_of_many_records_live_in_a_block() -> None:
    spans = np.arange(20_000, dtype=np.int64).reshape(-1, 2)
    rows = np.frombuffer(kernels.rows_in_turn([[(spans, 0)], [(spans, 1)]], 5), np.int64).reshape(
        -1, 4
    )
    assert sorted(rows.tolist()) == sorted(
        [start, end, tag << 32, 0] for start, end in spans.tolist() for tag in (0, 1)
    )
