"""Dataset.shuffle: the order, its seeds and epochs, what stays columnar, its memory, and that it
resumes everywhere.
"""

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import (
    Dataset,
    FixedLenFeature,
    Frames,
    StreamrecError,
    TFRecordDataset,
    encode_example,
    encode_records,
)
from streamrec.display import warn_once
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.chunk import Batches, Chunk
from streamrec.pipeline.elements.columns import Columns, in_turn, window
from streamrec.pipeline.elements.positions import Position
from streamrec.pipeline.engine import budget
from streamrec.pipeline.sources.shuffle.buffer import ShuffleBuffer
from streamrec.pipeline.sources.shuffle.buffer_store import (
    END,
    REFERENCE,
    START,
    TAG,
    BufferStore,
    Numbers,
    spans_of,
)
from streamrec.pipeline.sources.shuffle.held import ByNumber, HeldElements
from streamrec.pipeline.sources.shuffle.slots import NO_ROWS, BufferIndex, Entry, ShuffleRule
from streamrec.pipeline.stages.batch import make_batch
from streamrec.shards import byte_runs
from streamrec.tfrecord import BUFFER_BITS, Scattered
from tests.effort import drawn_examples, thorough
from tests.pipeline.stored_shards import ALL
from tests.runs import until_error, write_shards
from tests.servers.resuming import assert_resumes_everywhere, plain, stop_after

pytestmark = pytest.mark.usefixtures("both_layouts")


def test_each_element_comes_once_and_not_too_early() -> None:
    for size in (1, 2, 7, 100, 1000):
        found = list(Dataset.range(100).shuffle(size, seed=5))
        assert sorted(found) == list(range(100))
        assert all(number - place < size for place, number in enumerate(found))
    assert list(Dataset.range(100).shuffle(1, seed=5)) == list(range(100))
    assert list(Dataset.range(0).shuffle(3)) == []


def test_the_order_is_the_same_where_a_thread_lets_chunks_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where to resume, and what comes before an error."""
    path = tmp_path / "a.tfrecord"
    path.write_bytes(encode_records([b"%d" % number for number in range(60)])[:-3])
    damaged = TFRecordDataset(path).shuffle(20, seed=5)
    whole = TFRecordDataset(path).take(59).shuffle(20, seed=5)
    expected = list(whole)
    monkeypatch.setattr("streamrec.pipeline.sources.shuffle.shuffle.MIN_HOP_BYTES", 0)
    assert list(whole.with_options(epoch=0)) == expected
    assert_resumes_everywhere(whole)
    assert until_error(damaged, StreamrecError)[0] == expected


@pytest.mark.parametrize("taken", [0, 5, 37])
def test_batches_of_large_records_are_copied_once(tmp_path: Path, taken: int) -> None:
    """Chunks end between two batches, from the start and after a place in the middle: few batches
    are joined.
    """
    paths = write_shards(
        tmp_path, [[bytes([shard, n]) * 10_000 for n in range(100)] for shard in range(4)]
    )
    dataset = TFRecordDataset(paths, num_parallel_reads=4).shuffle(50, seed=1).batch(7)
    batches = list(dataset.iterate(stop_after(dataset, taken)[1]))
    assert sum(map(len, batches)) == 400 - 7 * taken
    joined = [
        batch for batch in batches if isinstance(batch.buffer, memoryview)
    ]  # what was joined is part of a block
    assert len(joined) <= 8  # where shards end, and in what the buffer gives last


def test_shuffles_without_a_seed_have_nothing_to_do_with_each_other() -> None:
    one = Dataset.range(50).shuffle(20)
    pairs = [(int(a), int(b)) for a, b in Dataset.zip(one, one)]
    assert [a for a, _ in pairs] != [b for _, b in pairs]
    found = list(one.concatenate(one))
    assert found[:50] != found[50:]


def test_every_place_of_the_buffer_is_as_likely() -> None:
    """Chi-square of which of eight comes first, over 400 seeds: 7 degrees of freedom, 99.9 % point
    24; all is fixed.
    """
    counts = np.zeros(8)
    for seed in range(400):
        counts[int(next(iter(Dataset.range(20).shuffle(8, seed).take(1))))] += 1
    assert ((counts - 50) ** 2 / 50).sum() < 24


def test_a_buffer_of_all_is_a_permutation_of_which_none_is_likelier() -> None:
    found = {tuple(Dataset.range(3).shuffle(10, seed)) for seed in range(60)}
    assert len(found) == 6


def test_parsed_columns_are_shuffled_row_by_row(tmp_path: Path) -> None:
    records = [encode_example({"n": [number], "name": [b"%d" % number]}) for number in range(40)]
    files = write_shards(tmp_path, [records])
    features = {"n": FixedLenFeature((), np.int64), "name": FixedLenFeature((), bytes)}
    dataset = TFRecordDataset(files).batch(8).parse_example(features).unbatch().shuffle(30, seed=1)
    found = list(dataset)
    assert sorted(int(row["n"]) for row in found) == list(range(40))
    assert all(row["name"] == b"%d" % row["n"] for row in found)
    (batch,) = dataset.batch(50)
    assert batch["n"].dtype == np.int64
    assert_resumes_everywhere(dataset)


@pytest.mark.parametrize("kind", ["GZIP", *thorough("ZLIB")])
def test_compressed_shards_resume_everywhere(tmp_path: Path, kind: str) -> None:
    compress = gzip.compress if kind == "GZIP" else zlib.compress
    paths = write_shards(tmp_path, [ALL[shard * 10 : shard * 10 + 10] for shard in range(3)])
    for path in map(Path, paths):
        path.write_bytes(compress(path.read_bytes()))
    assert_resumes_everywhere(TFRecordDataset(paths, num_parallel_reads=2).shuffle(12).repeat(2))


@pytest.mark.parametrize("mapped", [False, True])
def test_in_any_order_each_record_comes_once_though_resumed(files: list[str], mapped: bool) -> None:
    """Records, and what comes as it is ready, are held by reference."""
    records = TFRecordDataset(files, num_parallel_reads=3, deterministic=False)
    upper = bytes.upper
    dataset = (
        records.map(upper, num_parallel_calls=3, deterministic=False) if mapped else records
    ).shuffle(9)
    before, state = stop_after(dataset, 17)
    assert sorted(before + list(dataset.iterate(state))) == sorted(
        map(upper, ALL) if mapped else ALL
    )


def test_numbers_mean_nothing_where_there_is_no_order(
    files: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    mapped = Dataset.range(50).map(lambda number: number, num_parallel_calls=3).shuffle(9)
    with mapped.iterate() as iterator:
        next(iterator)
        assert iterator.state_dict()
    assert not caplog.records
    batches = TFRecordDataset(files, num_parallel_reads=3, deterministic=False).batch(2).shuffle(4)
    for dataset in (mapped.with_options(deterministic=False), batches):
        with dataset.iterate() as iterator:
            next(iterator)
            with pytest.raises(StreamrecError, match="has no fixed order"):
                iterator.state_dict()
    [said] = caplog.messages
    assert said.startswith("state_dict() of this run will be an error: the input of this shuffle")


def test_a_small_budget_holds_fewer_and_says_so(
    files: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    found = list(TFRecordDataset(files).shuffle(1000, seed=1).with_options(memory_budget=1 << 13))
    assert sorted(found) == sorted(ALL)
    (message,) = caplog.messages
    assert "shuffle(buffer_size=1000) holds only about" in message
    assert "raise memory_budget" in message
    caplog.clear()
    assert sorted(TFRecordDataset(files).shuffle(1000)) == sorted(ALL)
    assert not caplog.records


def test_the_order_does_not_follow_the_memory_of_the_machine(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less than others have, what does not fit is an error, before all elements; with as much,
    it is shorter.
    """
    large = Dataset.range(64).map(lambda n: np.full(1 << 20, n, np.uint8)).shuffle(50, seed=1)
    orders = []
    for memory in (1 << 30, 4 << 30, 8 << 30, 1 << 40):
        monkeypatch.setattr(budget, "machine_memory", lambda memory=memory: memory)
        with large.with_options(epoch=0).iterate() as run:
            if memory == 1 << 30:
                with pytest.raises(
                    MemoryError, match=r"shuffle\(buffer_size=50\) does not fit: \d+ elem.*global_"
                ):
                    next(run)
                continue
            orders.append([int(element[0]) for element in run])
        with large.with_options(epoch=0, memory_budget=1 << 29).iterate() as run:
            orders.append([int(element[0]) for element in run])
        small = TFRecordDataset(files).shuffle(10, seed=1)
        assert list(small) == list(small.with_options(epoch=0, memory_budget=1 << 30))
    assert orders == orders[:1] * 6


def test_a_state_of_a_small_machine_continues_elsewhere(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = TFRecordDataset(files).shuffle(10, seed=1)
    whole = list(dataset)
    for first, second in ((1 << 30, 1 << 40), (1 << 40, 1 << 30)):
        monkeypatch.setattr(budget, "machine_memory", lambda: first)  # noqa: B023 - called before the next turn
        before, state = stop_after(dataset.with_options(epoch=0), 7)
        monkeypatch.setattr(budget, "machine_memory", lambda: second)  # noqa: B023
        assert before + list(dataset.with_options(epoch=0).iterate(state)) == whole


def test_a_resumed_run_continues_within_another_budget(files: list[str]) -> None:
    """The order is that of the budget which it began with, in the epochs that follow too."""
    small = (
        TFRecordDataset(files, num_parallel_reads=3)
        .shuffle(1000, seed=1)
        .repeat(2)
        .with_options(memory_budget=1 << 13)
    )
    expected = list(small)
    before, state = stop_after(small.with_options(epoch=0), 20)
    assert before + list(small.with_options(memory_budget=1 << 28).iterate(state)) == expected
    assert list(small.with_options(memory_budget=1 << 28)) != expected


def test_a_shuffle_that_had_not_begun_has_the_same_budget_when_resumed() -> None:
    """A cache gives what it keeps the same share, be it filled or not."""
    dataset = Dataset.range(5).concatenate(Dataset.range(100).shuffle(80)).cache().repeat(2)
    assert_resumes_everywhere(dataset.with_options(memory_budget=1 << 13))


def test_another_shuffle_is_refused(files: list[str]) -> None:
    dataset = TFRecordDataset(files)
    _, state = stop_after(dataset.shuffle(5, seed=1), 1)
    for other in (
        dataset.shuffle(6, seed=1),
        dataset.shuffle(5),
        dataset.shuffle(5, 1, reshuffle_each_iteration=False),
    ):
        with pytest.raises(PositionMismatchError, match=r"with Shuffle\(buffer_size=5, seed=1"):
            other.iterate(state)


def test_an_input_that_shrank_is_refused() -> None:
    """Where elements are held by number, and a function changed but not its name."""
    left = [60]
    dataset = Dataset.range(100).take_while(lambda number: number < left[0]).shuffle(30, seed=1)
    _, state = stop_after(dataset, 25)
    left[0] = 40
    with pytest.raises(
        PositionMismatchError, match=r"has 40 elements after the saved position, but had \d+"
    ):
        list(dataset.iterate(state))


def test_an_element_that_failed_is_reported_at_once(files: list[str]) -> None:
    def fails_at_20(number: int) -> int:
        if number == 20:
            raise RuntimeError("twenty")
        return number

    elements = Dataset.range(50).map(fails_at_20).shuffle(8).iterate()
    found, _ = until_error(elements, RuntimeError, "twenty")
    assert len(found) == 12
    assert sorted([*found, *map(int, elements)]) == [number for number in range(50) if number != 20]


def test_fifty_thousand_are_less_than_a_megabyte(tmp_path: Path) -> None:
    shards = (
        [b"%02d%06d" % (shard, index) + b"x" * 76 for index in range(6000)] for shard in range(16)
    )
    records = TFRecordDataset(write_shards(tmp_path, shards), num_parallel_reads=16)
    for dataset in (
        records.shuffle(50_000),
        records.enumerate().shuffle(50_000),
        records.shuffle(50_000).shuffle(50_000),
    ):
        _, state = stop_after(dataset.batch(1000), 30)
        assert len(json.dumps(state)) < 1_000_000
        rest = dataset.batch(1000).iterate(state)
        assert (
            sum(len(batch[1] if isinstance(batch, tuple) else batch) for batch in rest)
            == 96_000 - 30_000
        )


# The store of what is held, the buffer, and what its positions say.

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
    "pairs": Columns(
        (np.arange(300), {"record": Frames.of(RECORDS), "text": np.array(RECORDS, object)})
    ),
    "mixed": in_turn([[Frames.of(RECORDS[::2])], [RECORDS[1::2]]], 1),
    "mixed pairs": Columns(
        (np.arange(300), in_turn([[RECORDS[::2]], [Frames.of(RECORDS[1::2])]], 1))
    ),
    "batches": Batches(Frames.of(RECORDS), 3),
}


def test_little_is_copied_where_elements_leave_at_random() -> None:
    """About a fifth of what comes in, a piece at a time; it was once more than all, into one block
    of a new size.
    """
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


def test_many_small_blocks_become_one() -> None:
    """Each block costs its part of every pick."""
    store = BufferStore(free_bytes=10**9)
    rows = np.concatenate([rows_of(store, Frames.of([b"%d" % number])) for number in range(400)])
    store.tidy(rows, int((rows[:, END] - rows[:, START]).sum()))
    assert len(np.unique(rows[:, TAG] >> BUFFER_BITS)) == 1
    assert list(store.pick(rows)) == [b"%d" % number for number in range(400)]


def test_batches_that_are_held_keep_nothing_else_alive() -> None:
    store, whole = (
        BufferStore(),
        Scattered.in_turn([[Frames.of([b"x" * 1000] * 40)], [Frames.of([b"y" * 1000] * 40)]], 1),
    )
    found = store.pick(rows_of(store, Batches(whole, 3))[[5]])
    assert [list(batch) for batch in found] == [list(whole[15:18])]
    assert found[0].pinned <= 2 * 3000


def feed_in_pieces(buffer: ShuffleBuffer, elements: Any, cuts: list[int]) -> Iterator[Chunk]:
    edges = [0, *sorted(min(cut, len(elements)) for cut in cuts), len(elements)]
    for first, last in zip(edges, edges[1:], strict=False):
        yield from buffer.feed(Chunk(window(elements, first, last), Numbered(first), 1))
    yield from buffer.drain()


def batches_of_one(chunks: Iterable[Chunk]) -> Iterator[Any]:
    """They tell the containers and dtypes of elements."""
    for chunk in chunks:
        yield from (
            plain(make_batch(window(chunk.elements, at, at + 1)))
            for at in range(len(chunk.elements))
        )


def test_known_positions_reach_back_to_the_oldest_element_held() -> None:
    """Older ones are forgotten, but positions that were given keep theirs."""
    rule = ShuffleRule(8, 1 << 40, 1)

    def slots(numbers: list[int], following: int) -> BufferIndex:
        rows = np.zeros((len(numbers), 4), np.int64)
        rows[:, REFERENCE] = numbers
        return BufferIndex(rule, rows, 0, Entry(NO_ROWS, Numbered(following), following), 0)

    start = ByNumber.of({"source": {"next": 0}})
    second = start.next_round(slots([1, 5], 8))
    third = second.next_round(slots([9, 10], 16))
    assert [known.number for known in start.known] == [0]
    assert [known.number for known in second.known] == [0, 8]
    assert [known.number for known in third.known] == [8, 16]
    assert third.describe(slots([10, 17], 20))["next"] == 12
    assert second.describe(slots([3, 17], 20))["next"] == 20


@drawn_examples(20)
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
    chunks = list(feed_in_pieces(ShuffleBuffer(rule, ByNumber.of(None)), KINDS[kind], cuts))
    found = [plain(one) for chunk in chunks for one in chunk.elements]
    again = list(feed_in_pieces(ShuffleBuffer(rule, ByNumber.of(None)), KINDS[kind], []))
    assert found == [plain(one) for chunk in again for one in chunk.elements]
    assert list(batches_of_one(chunks)) == list(batches_of_one(again))
    assert sorted(map(repr, found)) == sorted(repr(plain(one)) for one in KINDS[kind])


def test_chunks_weigh_what_their_positions_keep_alive() -> None:
    """Numbers of small records are larger than the records: queues that did not count them held
    twice their limit.
    """
    buffer = ShuffleBuffer(ShuffleRule(20_000, 1 << 30, 7), ByNumber.of(None))
    records = [Frames.of([b"%05d" % number for number in range(10_000)])] * 20
    for frames in records[:3]:
        assert sum(chunk.nbytes for chunk in buffer.feed(Chunk(frames, Numbered(0), 0))) < 10**7
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        chunks = [
            chunk for frames in records[3:] for chunk in buffer.feed(Chunk(frames, Numbered(0), 0))
        ]
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    weighed = sum(chunk.nbytes for chunk in chunks)
    assert 0.5 * weighed < held < 1.1 * weighed


def test_places_of_the_input_are_known_for_each_round_of_the_buffer() -> None:
    """So a resumed run goes back to the oldest element held, and to at most one round before it."""
    start = {"next": 0}
    buffer = ShuffleBuffer(ShuffleRule(100, 1 << 40, 1), ByNumber.of(start), start)
    farthest = 0
    for first in range(0, 40_000, 50):
        for chunk in buffer.feed(Chunk(Columns(np.arange(first, first + 50)), Numbered(first), 1)):
            state = chunk.positions.at(0)["source"]
            assert min(HeldElements.from_json(state["held"]).numbers.tolist(), default=0) < 300
            farthest = max(farthest, state["next"])
    assert 700 < farthest < 100 * (np.log(100) + 20)


@drawn_examples(40)
@given(
    offsets=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5000), st.integers(0, 300)), max_size=30
    ),
    gap=st.integers(0, 900),
    most=st.integers(1, 3000),
)
def test_stretches_hold_all_and_little_more(
    offsets: list[tuple[int, int, int]], gap: int, most: int
) -> None:
    wanted = sorted({(shard, offset): size for shard, offset, size in offsets}.items())
    references = np.array([(shard << 42) + offset for (shard, offset), _ in wanted], np.int64)
    plan = (
        byte_runs(references, np.array([size for _, size in wanted], np.int64), gap, most)
        if wanted
        else []
    )
    assert [index for each in plan for index in range(each.first, each.last)] == list(
        range(len(wanted))
    )
    for stretch in plan:
        inside = wanted[stretch.first : stretch.last]
        assert {shard for (shard, _), _ in inside} == {stretch.shard}
        assert stretch.start == inside[0][0][1]
        ends = [offset + size + 16 for (_, offset), size in inside]
        assert stretch.end >= ends[-1]
        assert all(after[0][1] - end <= gap for after, end in zip(inside[1:], ends, strict=False))
        assert inside[-1][0][1] - stretch.start < most
