"""The order of an interleave beside tf.data's algorithm: whatever has arrived when, it is the same."""

import random
from collections import Counter
from typing import Any

import anyio
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Frames
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Joined, NumberedPositions
from streamrec.pipeline.engine.queue import Signal
from streamrec.pipeline.sources.combine.interleave import DatasetInterleave, InputOrigin, OpenInput
from streamrec.pipeline.sources.interleave import Plan
from tests.effort import draws
from tests.pipeline.sources.test_shards_interleave import specification

ENDED = Joined(((NumberedPositions(10**6), 0, 0),))


def elements_of(queue: list[int], kind: str) -> Any:
    return Frames.of([b"%d" % value for value in queue]) if kind == "frames" else queue


async def interleaved(queues: list[list[int]], plan: Plan, kind: str, seed: int) -> tuple[list[int], list[Chunk]]:
    """All that an interleave gives while chunks of the queues, of random sizes, arrive at random times."""
    rng, signal = random.Random(seed), Signal()
    order = DatasetInterleave(plan, [None] * plan.cycle_length)
    arrived = [0] * len(queues)
    buffers: list[OpenInput] = []
    found: list[int] = []
    chunks: list[Chunk] = []
    while not order.finished:
        chosen = rng.randrange(len(queues) + 1)
        if chosen >= len(buffers):
            if len(buffers) < len(queues):
                number = len(buffers)
                buffers.append(OpenInput(1 << 40, signal, None, number, Joined(((NumberedPositions(number), 0, 0),))))
                order.waiting.append(buffers[-1])
            order.complete = len(buffers) == len(queues) and rng.random() < 0.9
        elif not buffers[chosen].ended:
            first = arrived[chosen]
            last = arrived[chosen] = min(len(queues[chosen]), first + rng.choice([0, 1, 2, 5, 30]))
            await buffers[chosen].put(
                Chunk(elements_of(queues[chosen][first:last], kind), NumberedPositions(first), 10), 10
            )
            if last == len(queues[chosen]):
                buffers[chosen].end(None)
        while rng.random() < 0.7:
            order.following = InputOrigin(len(buffers), Joined(((NumberedPositions(len(buffers)), 0, 0),)))
            chunk = order.pull()
            if chunk is None:
                break
            found += map(int, chunk.elements)
            chunks.append(chunk)
    return found, chunks


def remaining(queues: list[list[int]], state: Any, plan: Plan) -> list[int]:
    """What the specification gives from a position on."""
    left, slots = [list(queue) for queue in queues], []
    for slot in state["slots"]:
        slots.append(slot and slot[0])
        if slot is not None and slot[2] is not None:
            del left[slot[0]][: slot[2]["source"]["next"]]
    opened = [number for number in slots if number is not None]
    assert state["first"] == min(opened, default=state["next"]) == state["outer"]["source"]["next"]
    return specification(left, plan, slots, state["cycle"], state["block"], state["next"])


SLOTS = st.lists(st.integers(0, 40), min_size=1, max_size=8)


@given(SLOTS, st.integers(1, 9), st.integers(1, 12), st.sampled_from(["frames", "list"]), st.integers(0, 2**32))
@draws(300)
def test_the_order_is_tensorflows_whatever_arrives_when(
    lengths: list[int], cycle_length: int, block_length: int, kind: str, seed: int
) -> None:
    queues = [list(range(at * 100, at * 100 + length)) for at, length in enumerate(lengths)]
    plan = Plan(cycle_length, block_length)
    wanted = specification(queues, plan)
    found, chunks = anyio.run(interleaved, queues, plan, kind, seed)
    assert found == wanted
    done = 0
    for chunk in chunks:
        for index in range(len(chunk.elements) + 1):
            state = chunk.positions.at(index)["source"]
            assert remaining(queues, state, plan) == wanted[done + index :]
        done += len(chunk.elements)


@given(SLOTS, st.integers(1, 9), st.integers(1, 12), st.sampled_from(["frames", "list"]), st.integers(0, 2**32))
@draws(200)
def test_any_order_gives_each_once(
    lengths: list[int], cycle_length: int, block_length: int, kind: str, seed: int
) -> None:
    queues = [list(range(at * 100, at * 100 + length)) for at, length in enumerate(lengths)]
    everything = Counter(value for queue in queues for value in queue)
    plan = Plan(cycle_length, block_length, False)
    found, chunks = anyio.run(interleaved, queues, plan, kind, seed)
    assert Counter(found) == everything
    for at, _ in enumerate(lengths):
        assert [value for value in found if value // 100 == at] == queues[at]
    done = 0
    for chunk in chunks:
        for index in range(len(chunk.elements) + 1):
            left = remaining(queues, chunk.positions.at(index)["source"], plan)
            assert Counter(left) + Counter(found[: done + index]) == everything
        done += len(chunk.elements)


def test_many_rounds_are_one_chunk() -> None:
    queues = [list(range(at * 10_000, at * 10_000 + 1000)) for at in range(4)]

    async def pulled() -> Chunk | None:
        order, signal = DatasetInterleave(Plan(4), [None] * 4), Signal()
        for at, queue in enumerate(queues):
            order.waiting.append(OpenInput(1 << 30, signal, None, at, Joined(())))
            await order.waiting[-1].put(
                Chunk(Frames.of([b"%d" % value for value in queue]), NumberedPositions(0), 10), 10
            )
        order.following = InputOrigin(4, ENDED)
        return order.pull()

    chunk = anyio.run(pulled)
    assert chunk is not None
    assert isinstance(chunk.elements, Frames)
    assert len(chunk.elements) == 4000
    assert [int(one) for one in chunk.elements] == np.array(queues).T.ravel().tolist()
