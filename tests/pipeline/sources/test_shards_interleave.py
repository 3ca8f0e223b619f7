"""The order of records: tf.data's, whatever arrives when."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec import Framer, Frames, encode_records
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.sources.interleave import Plan
from streamrec.pipeline.sources.shards.shard_queue import ShardInterleave, ShardQueue
from tests.effort import draws

pytestmark = pytest.mark.usefixtures("both_layouts")

T = TypeVar("T")

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=7)
PLANS = st.builds(Plan, st.integers(1, 5), st.integers(1, 4))


def shard_records(shard: int, length: int) -> list[bytes]:
    return [b"%d.%d" % (shard, index) for index in range(length)]


def specification(
    queues: Sequence[Sequence[T]],
    plan: Plan,
    slots: Sequence[int | None] | None = None,
    cycle: int = 0,
    block: int = 0,
    following: int = 0,
) -> list[T]:
    """tf.data's interleave, as its documentation describes it, from a place on: `slots` hold numbers of queues."""
    left, held, found = [list(queue) for queue in queues], list(slots or [None] * plan.cycle_length), list[T]()
    while following < len(left) or any(slot is not None for slot in held):
        slot = held[cycle]
        if slot is None and following < len(left):
            held[cycle], following = following, following + 1
            continue
        if slot is not None and left[slot]:
            found.append(left[slot].pop(0))
            block += 1
            if block < plan.block_length:
                continue
        elif slot is not None:
            held[cycle] = None
        cycle, block = (cycle + 1) % len(held), 0
    return found


def all_records(lengths: list[int], plan: Plan) -> list[bytes]:
    """What the interleave of shards of these lengths gives."""
    return specification([shard_records(shard, length) for shard, length in enumerate(lengths)], plan)


class Arriving:
    """Feeds an interleave: pieces of shards arrive in an order that a random generator chooses."""

    def __init__(
        self,
        lengths: list[int],
        plan: Plan,
        seed: int,
        state: Mapping[str, Any] | None = None,
        *,
        batch: int = 1,
        skip: int = 0,
        limits: tuple[int, ...] = (0, 1000),
    ) -> None:
        self.interleave = ShardInterleave(plan, len(lengths), state, batch=batch, skip=skip)
        self._random = random.Random(seed)
        self._pieces: dict[int, list[Frames]] = {}
        self._lengths = lengths
        self._limits = limits

    def arrive(self) -> None:
        """One more piece of one shard, or its end."""
        self.go_on(self._random.choice([queue for queue in self.interleave.wanted(2) if not queue.ended]))

    def go_on(self, queue: ShardQueue) -> None:
        """One more piece of this shard, or its end."""
        if queue.shard not in self._pieces:
            self._pieces[queue.shard] = self._cut(queue.shard, queue.start.place.offset)
            queue.open(None, "", self._random.choice(self._limits))
        pieces = self._pieces[queue.shard]
        if pieces:
            queue.push(pieces.pop(0))
        else:
            queue.ended = True

    def _cut(self, shard: int, offset: int) -> list[Frames]:
        data = encode_records(shard_records(shard, self._lengths[shard]))
        frames = Framer(position=offset).feed(data[offset:])
        edges = sorted({0, len(frames), *(self._random.randrange(len(frames) + 1) for _ in range(2))})
        return [frames.window(first, last) for first, last in zip(edges, edges[1:], strict=False)]


def run(arriving: Arriving) -> Iterator[Chunk]:
    while not arriving.interleave.finished:
        pulled = arriving.interleave.pull()
        if pulled is not None:
            yield pulled
        elif not arriving.interleave.finished:
            arriving.arrive()


def records_of(arriving: Arriving) -> list[Any]:
    return [record for chunk in run(arriving) for record in chunk.elements]


@contextmanager
def stretches_from(size: int | None) -> Iterator[None]:
    """With a size, records are taken for long stretches of a block from that on, which go without a copy."""
    with pytest.MonkeyPatch.context() as patch:
        if size is not None:
            patch.setattr("streamrec.pipeline.sources.interleave.STRETCH_BYTES", size)
            patch.setattr("streamrec.pipeline.sources.shards.shard_queue.STRETCH_BYTES", size)
        yield


@pytest.mark.parametrize("stretch", [None, 1])
@given(lengths=LENGTHS, plan=PLANS, seed=st.integers(0, 9), batch=st.integers(1, 5), skip=st.integers(0, 3))
@draws(300)
def test_the_order_is_tensorflows_whatever_arrives_first(
    stretch: int | None, lengths: list[int], plan: Plan, seed: int, batch: int, skip: int
) -> None:
    with stretches_from(stretch):
        found = records_of(Arriving(lengths, plan, seed, batch=batch, skip=skip))
    assert found == all_records(lengths, plan)


@pytest.mark.parametrize("stretch", [None, 1])
@given(lengths=LENGTHS, plan=PLANS, seed=st.integers(0, 9), batch=st.integers(1, 9), skip=st.integers(0, 3))
@draws(300)
def test_only_what_is_awaited_needs_to_go_on(
    stretch: int | None, lengths: list[int], plan: Plan, seed: int, batch: int, skip: int
) -> None:
    """Each queue that is awaited can go on without anything being taken; when all of them have, something else is."""
    arriving = Arriving(lengths, plan, seed, batch=batch, skip=skip)
    interleave, found = arriving.interleave, []
    with stretches_from(stretch):
        while not interleave.finished:
            pulled = interleave.pull()
            if pulled is not None:
                found += list(pulled.elements)
            elif not interleave.finished:
                assert interleave.awaited
                for queue in interleave.awaited:
                    assert queue.comes
                    arriving.go_on(queue)
    assert found == all_records(lengths, plan)


@pytest.mark.parametrize("stretch", [None, 1])
@given(lengths=LENGTHS, plan=PLANS, seed=st.integers(0, 9), batch=st.integers(1, 5))
@draws(200)
def test_every_turn_resumes_exactly(stretch: int | None, lengths: list[int], plan: Plan, seed: int, batch: int) -> None:
    expected = all_records(lengths, plan)
    seen = 0
    with stretches_from(stretch):
        for chunk in run(Arriving(lengths, plan, seed, batch=batch)):
            for index in range(len(chunk.elements) + 1):
                rest = records_of(Arriving(lengths, plan, seed + 1, chunk.positions.at(index)["source"]))
                assert rest == expected[seen + index :]
            seen += len(chunk.elements)


@given(lengths=LENGTHS, cycle=st.integers(1, 5), seed=st.integers(0, 9))
@settings(deadline=None)
def test_first_come_gives_each_record_once_and_resumes_exactly(lengths: list[int], cycle: int, seed: int) -> None:
    plan = Plan(cycle, deterministic=False)
    every = sorted(all_records(lengths, plan))
    found: list[bytes] = []
    for chunk in run(Arriving(lengths, plan, seed)):
        records = list(chunk.elements)
        for index in (0, len(records) // 2, len(records)):
            rest = records_of(Arriving(lengths, plan, seed + 1, chunk.positions.at(index)["source"]))
            assert sorted(found + records[:index] + rest) == every
        found += records
    assert sorted(found) == every


@given(cycle=st.integers(1, 5), batch=st.integers(1, 20), skip=st.integers(0, 25))
def test_pulls_end_between_batches_while_no_shard_ends(cycle: int, batch: int, skip: int) -> None:
    plan, lengths = Plan(cycle), [60] * cycle
    arriving = Arriving(lengths, plan, batch + skip, batch=batch, skip=skip, limits=(1 << 20,))
    seen = -skip
    while not any(queue.ended for queue in arriving.interleave.wanted(2)):
        pulled = arriving.interleave.pull()
        if pulled is None:
            arriving.arrive()
        else:
            seen += len(pulled.elements)
            assert seen % batch == 0


def test_the_rest_of_long_blocks_comes_in_one_pull() -> None:
    """Records that were taken of a block do not make those that are left look longer, and pulls smaller."""
    interleave = ShardInterleave(Plan(4), 4)
    for queue in interleave.wanted(4):
        queue.push(Framer().feed(encode_records([b"x" * 10_000] * 300)))
        queue.ended = True
    sizes = []
    while (pulled := interleave.pull()) is not None:
        sizes.append(len(pulled.elements))
    most = max(sizes)
    assert sizes == [most] * (len(sizes) - 1) + [1200 - most * (len(sizes) - 1)]


@pytest.mark.parametrize(("most", "wanted"), [(0, 128), (20 << 20, 208), (1 << 40, 256)])
def test_a_pull_of_long_records_takes_more_where_the_budget_allows(most: int, wanted: int) -> None:
    record, count = 100 << 10, 200
    ends = (np.arange(count) + 1) * record
    frames = Frames(bytes(count * record), np.stack([ends - record, ends], 1), 0)
    interleave = ShardInterleave(Plan(2), 2, batch=8, max_bytes=most)
    for queue in interleave.wanted(2):
        queue.open(None, "", 0)
        queue.push(frames)
    pulled = interleave.pull()
    assert pulled is not None
    assert len(pulled.elements) == wanted


def test_one_shard_alone_is_not_copied() -> None:
    interleave = ShardInterleave(Plan(), 1)
    (queue,) = interleave.wanted(2)
    frames = Framer().feed(encode_records([b"x" * 1000] * 1000))
    queue.push(frames)
    pulled = interleave.pull()
    assert pulled is not None
    assert isinstance(pulled.elements, Frames)
    assert pulled.elements.buffer is frames.buffer
