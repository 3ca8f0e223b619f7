"""The pure parts of shuffle: the store of what is held, the buffer, and what its positions say."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Frames
from streamrec.pipeline.elements.chunk import Batches, Chunk
from streamrec.pipeline.elements.columns import Columns, window
from streamrec.pipeline.elements.positions import Position
from streamrec.pipeline.sources.shuffle.buffer import HeldElements, ShuffleBuffer, ShuffleRule
from streamrec.pipeline.sources.shuffle.buffer_store import END, START, TAG, BufferStore, Numbers, spans_of
from streamrec.shards import byte_runs
from streamrec.tfrecord import BUFFER_BITS, Scattered
from tests.effort import draws
from tests.servers.resuming import plain

patient = draws(40)
"""A busy machine is no failure."""

RECORDS = [b"%03d" % number + b"x" * (number * 37 % 200) for number in range(300)]


@dataclass(frozen=True)
class Numbered:
    """Positions of elements that have numbers."""

    first: int

    def at(self, index: int) -> Position:
        return {"next": self.first + index}


def rows_of(store: BufferStore, elements: Any) -> Numbers:
    spans = spans_of(elements)
    rows = np.zeros((len(spans), 4), np.int64)
    rows[:, : END + 1] = spans
    rows[:, TAG] = store.add(elements, spans) | 5
    return rows


KINDS: dict[str, Any] = {
    "records": Frames.of(RECORDS),
    "scattered": Scattered.in_turn([[Frames.of(RECORDS[queue::3])] for queue in range(3)], 1),
    "long": Frames.of([record * 5000 for record in RECORDS]),
    "objects": RECORDS,
    "numbers": Columns(np.arange(300)),
    "pairs": Columns((np.arange(300), {"record": Frames.of(RECORDS), "text": np.array(RECORDS, object)})),
    "batches": Batches(Frames.of(RECORDS), 3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_picked_elements_are_those_of_their_rows_before_and_after_tidying(kind: str) -> None:
    """And what is dead does not stay."""
    elements, store, draw = KINDS[kind], BufferStore(), np.random.default_rng(3)
    cuts = [0, 20, 21, 90, len(elements)]
    rows = np.concatenate([rows_of(store, window(elements, *each)) for each in zip(cuts, cuts[1:], strict=False)])
    wanted = np.arange(len(elements))
    while len(rows) > 3:
        kept = np.sort(draw.permutation(len(rows))[: len(rows) * 2 // 3])
        rows, wanted = rows[kept], wanted[kept]
        live_bytes = int((rows[:, END] - rows[:, START]).sum())
        store.tidy(rows, live_bytes)
        assert store.held_bytes <= max(2 * live_bytes, 1)
        order = draw.permutation(len(rows))
        found = store.pick(rows[order])
        assert [plain(one) for one in found] == [plain(elements[index]) for index in wanted[order].tolist()]
        assert isinstance(
            found, Columns if isinstance(elements, Columns) else Frames if isinstance(elements, Frames) else list
        )
        assert isinstance(found, Scattered) == (kind == "long"), "long records leave without a copy"
    assert (rows[:, TAG] & 0xFFFFFFFF == 5).all()


@pytest.mark.parametrize("size", [100, 9000])
def test_of_long_records_more_that_is_dead_is_kept(size: int) -> None:
    """As much as the buffer may hold, were it alive."""
    store = BufferStore(free_bytes=10 * size)
    rows = np.concatenate([rows_of(store, Frames.of([bytes(size)])) for _ in range(15)])[:1]
    store.tidy(rows, size)
    assert (store.held_bytes == 15 * size) is (size == 9000)
    rows = np.concatenate([rows, *(rows_of(store, Frames.of([bytes(size)])) for _ in range(10))])[:1]
    store.tidy(rows, size)
    assert store.held_bytes <= 20 * size


def test_little_is_copied_where_elements_leave_at_random() -> None:
    """About a fifth of what comes in, a piece at a time; it was once more than all, into one block of a new size."""
    store, draw = BufferStore(), np.random.default_rng(1)
    chunk, size = Frames.of([bytes(4096)] * 50), 50 * 4096
    rows, moved = np.empty((0, 4), np.int64), 0
    for number in range(400):
        rows = np.concatenate([rows, rows_of(store, chunk)])
        if number >= 40:
            rows = rows[draw.permutation(len(rows))[50:]]
        before = rows.copy()
        store.tidy(rows, 4096 * len(rows))
        assert store.held_bytes <= 2 * 4096 * len(rows)
        moved += int((rows[:, TAG] != before[:, TAG]).sum()) * 4096
    assert moved < 0.35 * size * 360


def test_a_buffer_that_comes_in_parts_is_one_block_and_weighs_what_came() -> None:
    """Of a chunk's window too, which has all of the chunk's buffers."""
    buffer = Frames(bytes(3000), np.array([[12, 1000], [1016, 2000], [2016, 2996]]))
    whole = Scattered.in_turn([[buffer], [Frames.of([b"a", b"b", b"c"])]], 1)
    store = BufferStore()
    first = rows_of(store, whole.window(0, 2))
    assert store.held_bytes == 988 + 1 + 2 * 16
    rest = rows_of(store, whole.window(2, 6))
    rows = np.concatenate([first, rest])
    assert len(np.unique(rows[:, TAG])) == 2
    assert store.held_bytes == 988 + 984 + 980 + 3 + 6 * 16
    assert list(store.pick(rows)) == list(whole)
    store.tidy(rest[:1], 984)
    assert store.held_bytes <= 2 * 984
    late = rows_of(store, whole.window(4, 6))
    assert list(store.pick(np.concatenate([rest[:1], late]))) == [whole[2], whole[4], whole[5]]


def test_batches_that_are_held_keep_nothing_else_alive() -> None:
    store, whole = (
        BufferStore(),
        Scattered.in_turn([[Frames.of([b"x" * 1000] * 40)], [Frames.of([b"y" * 1000] * 40)]], 1),
    )
    found = store.pick(rows_of(store, Batches(whole, 3))[[5]])
    assert [list(batch) for batch in found] == [list(whole[15:18])]
    assert found[0].pinned <= 2 * 3000


def test_many_small_blocks_become_few() -> None:
    """Each block costs its part of every pick."""
    store = BufferStore(free_bytes=10**9)
    rows = np.concatenate([rows_of(store, Frames.of([b"%d" % number])) for number in range(400)])
    store.tidy(rows, int((rows[:, END] - rows[:, START]).sum()))
    assert len(np.unique(rows[:, TAG] >> BUFFER_BITS)) == 1
    assert list(store.pick(rows)) == [b"%d" % number for number in range(400)]


def test_what_an_element_weighs_depends_on_it_alone() -> None:
    """Not on the chunk that it came in: the order would depend on the network."""
    together = Frames(b"".join(b"header......" + record + b"foot" for record in RECORDS[:9]), framed(RECORDS[:9]))
    for records in (together, Frames.of(RECORDS[:9])):
        batches = Batches(records, 3)
        assert np.diff(spans_of(list(batches)))[:, 0].tolist() == np.diff(spans_of(KINDS["batches"][:3]))[:, 0].tolist()
        pairs = Columns((np.arange(9), records))
        assert np.diff(spans_of(pairs))[:, 0].tolist() == [8 + len(record) for record in RECORDS[:9]]


def framed(records: list[bytes]) -> Numbers:
    ends = np.cumsum([len(record) + 16 for record in records]) - 4
    return np.stack([ends - [len(record) for record in records], ends], 1)


def fed(buffer: ShuffleBuffer, elements: Any, cuts: list[int]) -> Iterator[Chunk]:
    edges = [0, *sorted(min(cut, len(elements)) for cut in cuts), len(elements)]
    for first, last in zip(edges, edges[1:], strict=False):
        yield from buffer.feed(Chunk(window(elements, first, last), Numbered(first), 1))
    yield from buffer.drain()


@patient
@given(
    capacity=st.integers(1, 400),
    limit=st.sampled_from([1 << 40, 40_000, 3_000, 0]),
    key=st.integers(0, 99),
    cuts=st.lists(st.integers(0, 300), max_size=5),
    kind=st.sampled_from(sorted(KINDS)),
)
def test_the_order_does_not_depend_on_the_chunks(
    capacity: int, limit: int, key: int, cuts: list[int], kind: str
) -> None:
    rule = ShuffleRule(capacity, limit, key)
    found = [plain(one) for chunk in fed(ShuffleBuffer(rule, False), KINDS[kind], cuts) for one in chunk.elements]
    again = [plain(one) for chunk in fed(ShuffleBuffer(rule, False), KINDS[kind], []) for one in chunk.elements]
    assert found == again
    assert sorted(map(repr, found)) == sorted(repr(plain(one)) for one in KINDS[kind])


@pytest.mark.parametrize(
    ("batch", "begun", "sizes"), [(4, 1, [3, 4, 4, 4, 4, 1]), (5, 1, [5, 5, 5, 5]), (1, 0, [5, 5, 5, 5])]
)
def test_what_is_left_comes_in_whole_batches(batch: int, begun: int, sizes: list[int]) -> None:
    """As far as they are no larger than a chunk: a batch that straddles two chunks is copied."""
    buffer = ShuffleBuffer(ShuffleRule(100, 1 << 40, 7), False)
    megabytes = Frames(bytes(1 << 20), np.array([[0, 1 << 20]] * 20))
    assert not list(buffer.feed(Chunk(megabytes, Numbered(0), 1)))
    assert [len(chunk.elements) for chunk in buffer.drain(batch, begun)] == sizes


def test_chunks_weigh_what_their_positions_keep_alive() -> None:
    """Numbers of small records are larger than the records: queues that did not count them held twice their limit."""
    buffer = ShuffleBuffer(ShuffleRule(20_000, 1 << 30, 7), refers=False)
    records = [Frames.of([b"%05d" % number for number in range(10_000)])] * 20
    for frames in records[:3]:
        assert sum(chunk.nbytes for chunk in buffer.feed(Chunk(frames, Numbered(0), 0))) < 10**7
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        chunks = [chunk for frames in records[3:] for chunk in buffer.feed(Chunk(frames, Numbered(0), 0))]
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    weighed = sum(chunk.nbytes for chunk in chunks)
    assert 0.5 * weighed < held < 1.1 * weighed


def test_places_of_the_input_are_known_for_each_round_of_the_buffer() -> None:
    """So a resumed run goes back to the oldest element held, and to one round before it at the most."""
    buffer = ShuffleBuffer(ShuffleRule(100, 1 << 40, 1), False, start={"next": 0})
    farthest = 0
    for first in range(0, 100_000, 50):
        for chunk in buffer.feed(Chunk(Columns(np.arange(first, first + 50)), Numbered(first), 1)):
            state = chunk.positions.at(0)["source"]
            assert min(HeldElements.from_json(state["held"]).numbers.tolist(), default=0) < 300
            farthest = max(farthest, state["next"])
    assert 700 < farthest < 100 * (np.log(100) + 20)


@patient
@given(
    offsets=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5000), st.integers(0, 300)), max_size=30),
    gap=st.integers(0, 900),
    most=st.integers(1, 3000),
)
def test_stretches_hold_all_and_little_more(offsets: list[tuple[int, int, int]], gap: int, most: int) -> None:
    wanted = sorted({(shard, offset): size for shard, offset, size in offsets}.items())
    references = np.array([(shard << 42) + offset for (shard, offset), _ in wanted], np.int64)
    plan = byte_runs(references, np.array([size for _, size in wanted], np.int64), gap, most) if wanted else []
    assert [index for each in plan for index in range(each.first, each.last)] == list(range(len(wanted)))
    for stretch in plan:
        inside = wanted[stretch.first : stretch.last]
        assert {shard for (shard, _), _ in inside} == {stretch.shard}
        assert stretch.start == inside[0][0][1]
        ends = [offset + size + 16 for (_, offset), size in inside]
        assert stretch.end >= ends[-1]
        assert all(after[0][1] - end <= gap for after, end in zip(inside[1:], ends, strict=False))
        assert inside[-1][0][1] - stretch.start < most
