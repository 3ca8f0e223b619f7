"""The order of an interleave of shards, and of one of datasets: tf.data's, whatever arrives
when.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamrec import Dataset, Framer, Frames, encode_records
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.sources.interleave import Plan
from streamrec.pipeline.sources.shards.shard_queue import ShardInterleave, ShardQueue
from tests.effort import drawn_examples
from tests.servers.resuming import assert_resumes_everywhere, stop_after

pytestmark = pytest.mark.usefixtures("both_layouts")

T = TypeVar("T")

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=7)
PLANS = st.builds(Plan, st.integers(1, 5), st.integers(1, 4))


def shard_records(shard: int, length: int) -> list[bytes]:
    return [b"%d.%d" % (shard, index) for index in range(length)]


def specification(queues: Sequence[Sequence[T]], plan: Plan) -> list[T]:
    """tf.data's interleave, as its documentation describes it."""
    left, found = [list(queue) for queue in queues], list[T]()
    held: list[int | None] = [None] * plan.cycle_length
    cycle = block = following = 0
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
    return specification(
        [shard_records(shard, length) for shard, length in enumerate(lengths)], plan
    )


class Arriving:
    """Feeds an interleave: pieces of shards arrive in an order that a random generator chooses."""

    def __init__(
        self,
        lengths: list[int],
        plan: Plan,
        seed: int,
        state: Mapping[str, Any] | None = None,
        **more: int,
    ) -> None:
        self.interleave = ShardInterleave(plan, len(lengths), state, **more)
        self._random = random.Random(seed)
        self._pieces: dict[int, list[Frames]] = {}
        self._pushed: dict[int, int] = {}  # the number of the next record of each shard
        self._lengths = lengths

    def arrive(self) -> None:
        """One more piece of one shard, or its end."""
        self.go_on(
            self._random.choice([queue for queue in self.interleave.wanted(2) if not queue.ended])
        )

    def go_on(self, queue: ShardQueue) -> None:
        """One more piece of this shard, or its end."""
        if queue.start.shard not in self._pieces:
            self._pieces[queue.start.shard] = self._cut(queue.start.shard, queue.start.place.offset)
            queue.open(queue.start.opened(None, ""), self._random.choice((0, 1000)))
            self._pushed[queue.start.shard] = queue.start.place.record
        pieces = self._pieces[queue.start.shard]
        if pieces:
            frames = pieces.pop(0)
            queue.push(frames, self._pushed[queue.start.shard])
            self._pushed[queue.start.shard] += len(frames)
        else:
            queue.ended = True

    def _cut(self, shard: int, offset: int) -> list[Frames]:
        data = encode_records(shard_records(shard, self._lengths[shard]))
        frames = Framer(position=offset).feed(data[offset:])
        edges = sorted(
            {0, len(frames), *(self._random.randrange(len(frames) + 1) for _ in range(2))}
        )
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
    """With a size, a pull has no more bytes than that, and no slice from that size on is copied."""
    with pytest.MonkeyPatch.context() as patch:
        if size is not None:
            patch.setattr("streamrec.pipeline.sources.pulls.CHUNK_BYTES", size)
            patch.setattr("streamrec.pipeline.sources.shards.shard_queue.STRETCH_BYTES", size)
        yield


@pytest.mark.parametrize("stretch", [None, 1])
@given(
    lengths=LENGTHS,
    plan=PLANS,
    seed=st.integers(0, 9),
    batch=st.integers(1, 9),
    skip=st.integers(0, 3),
)
@drawn_examples(150)
def test_only_what_is_awaited_needs_to_go_on(
    stretch: int | None, lengths: list[int], plan: Plan, seed: int, batch: int, skip: int
) -> None:
    """Each queue that is awaited can go on without anything being taken, until it has what is
    needed of it; when all of them have, something else is awaited, or taken.
    """
    arriving = Arriving(lengths, plan, seed, batch=batch, skip=skip)
    interleave, found = arriving.interleave, []
    with stretches_from(stretch):
        while not interleave.finished:
            pulled = interleave.pull()
            if pulled is not None:
                found += list(pulled.elements)
            elif not interleave.finished:
                assert interleave.awaited
                for queue, needed in interleave.awaited.items():
                    assert queue.comes
                    while queue.comes and queue.available < needed:
                        arriving.go_on(queue)
    assert found == all_records(lengths, plan)


@pytest.mark.parametrize("stretch", [None, 1])
@given(lengths=LENGTHS, plan=PLANS, seed=st.integers(0, 9), batch=st.integers(1, 5))
@drawn_examples(100)
def test_every_turn_resumes_exactly(
    stretch: int | None, lengths: list[int], plan: Plan, seed: int, batch: int
) -> None:
    expected = all_records(lengths, plan)
    seen = 0
    with stretches_from(stretch):
        for chunk in run(Arriving(lengths, plan, seed, batch=batch)):
            assert list(chunk.elements) == expected[seen : seen + len(chunk.elements)]
            for index in range(len(chunk.elements) + 1):
                rest = records_of(
                    Arriving(lengths, plan, seed + 1, chunk.positions.at(index)["source"])
                )
                assert rest == expected[seen + index :]
            seen += len(chunk.elements)
    assert seen == len(expected)


@given(lengths=LENGTHS, cycle=st.integers(1, 5), seed=st.integers(0, 9))
@settings(deadline=None)
def test_first_come_gives_each_record_once_and_resumes_exactly(
    lengths: list[int], cycle: int, seed: int
) -> None:
    plan = Plan(cycle, deterministic=False)
    every = sorted(all_records(lengths, plan))
    found: list[bytes] = []
    for chunk in run(Arriving(lengths, plan, seed)):
        records = list(chunk.elements)
        for index in (0, len(records) // 2, len(records)):
            rest = records_of(
                Arriving(lengths, plan, seed + 1, chunk.positions.at(index)["source"])
            )
            assert sorted(found + records[:index] + rest) == every
        found += records
    assert sorted(found) == every


@pytest.mark.parametrize(("most", "wanted"), [(0, 128), (20 << 20, 208), (1 << 40, 256)])
def test_a_pull_of_long_records_takes_more_where_the_budget_allows(most: int, wanted: int) -> None:
    record, count = 100 << 10, 200
    ends = (np.arange(count) + 1) * record
    frames = Frames(bytes(count * record), np.stack([ends - record, ends], 1), 0)
    interleave = ShardInterleave(Plan(2), 2, batch=8, max_bytes=most)
    for queue in interleave.wanted(2):
        queue.open(queue.start.opened(None, ""), 0)
        queue.push(frames, 0)
    pulled = interleave.pull()
    assert pulled is not None
    assert len(pulled.elements) == wanted


@pytest.mark.parametrize(("size", "skip"), [(8, 0), (8, 3), (30, 7), (1, 0)])
def test_a_pull_ends_where_a_batch_ends(size: int, skip: int) -> None:
    """So that a later stage makes a batch of one chunk, as a window, and copies nothing."""
    arriving = Arriving([50] * 4, Plan(4, 2), 1, batch=size, skip=skip)
    while any(not queue.ended for queue in arriving.interleave.wanted(4)):
        arriving.arrive()
    counts = [len(chunk.elements) for chunk in run(arriving)]
    assert sum(counts) == 200
    assert (counts[0] - skip) % size == 0
    assert counts[0] > size


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=5), plan=PLANS, seed=st.integers(0, 9)
)
@drawn_examples(25, HealthCheck.too_slow)
def test_datasets_come_in_that_order_too(lengths: list[int], plan: Plan, seed: int) -> None:
    """Records of async generators, each of which waits for some turns of the loop; or in any order,
    each once.
    """

    async def delayed(shard: int) -> AsyncIterator[bytes]:
        chance = random.Random(10 * seed + shard)
        for record in shard_records(shard, lengths[shard]):
            for _ in range(chance.choice([0, 0, 1, 5])):
                await asyncio.sleep(0)
            yield record

    def one(shard: Any) -> Dataset[bytes]:
        return Dataset.from_generator(delayed, (int(shard),))

    numbers, wanted = Dataset.range(len(lengths)), all_records(lengths, plan)
    dataset = numbers.interleave(one, plan.cycle_length, plan.block_length)
    assert list(dataset) == wanted
    assert_resumes_everywhere(dataset)
    loose = numbers.interleave(one, plan.cycle_length, plan.block_length, deterministic=False)
    for count in range(0, len(wanted) + 1, 5):
        before, state = stop_after(loose, count)
        assert sorted([*before, *loose.iterate(state)]) == sorted(wanted)
