"""The order of an interleave beside tf.data's algorithm: whatever arrives when, and on any reads."""

import io
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from fsspec import AbstractFileSystem
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Frames, TFRecordDataset, encode_records
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Joined, NumberedPositions
from streamrec.pipeline.engine.queue import Signal
from streamrec.pipeline.sources.combine.interleave import DatasetInterleave, InputOrigin, OpenInput
from streamrec.pipeline.sources.interleave import Plan
from streamrec.pipeline.sources.shards.source import QUEUE_BYTES
from streamrec.storage.backend import BLOCK_BYTES
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


SHARDS = 4
RECORDS = 20
RECORD_BYTES = 1 << 20


def record(shard: int, index: int) -> bytes:
    return (b"%d.%d." % (shard, index)).ljust(RECORD_BYTES, b"x")


class Gated(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files of which one gives nothing until a gate opens; how much was read of each is known."""

    protocol = "gated"
    cachable = False

    def __init__(self, folder: Path, slow: str) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.read = dict.fromkeys((path.name for path in folder.iterdir()), 0)
        self.changed = threading.Condition()
        self._folder = folder
        self._slow = slow

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": (self._folder / path).stat().st_size, "type": "file"}

    def open(self, path: str, mode: str = "rb", **_: Any) -> io.BufferedReader:
        return io.BufferedReader(GatedFile(self, path, self._folder / path))

    def wait(self, name: str) -> None:
        """Until this file may be read."""
        if name == self._slow:
            assert self.gate.wait(timeout=60)

    def has_read(self, name: str, count: int) -> None:
        with self.changed:
            self.read[name] += count
            self.changed.notify_all()


class GatedFile(io.FileIO):
    def __init__(self, gated: Gated, name: str, path: Path) -> None:
        super().__init__(path)
        self._gated, self._called = gated, name

    def readinto(self, buffer: Any) -> int | None:
        self._gated.wait(self._called)
        count = super().readinto(buffer)
        self._gated.has_read(self._called, count or 0)
        return count


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard in range(SHARDS):
        (tmp_path / str(shard)).write_bytes(encode_records([record(shard, index) for index in range(RECORDS)]))
    return tmp_path


@pytest.mark.parametrize("slow", range(SHARDS))
def test_a_slow_shard_idles_no_other_and_the_order_stays(folder: Path, slow: int) -> None:
    filesystem = Gated(folder, slow=str(slow))
    names = [f"gated://{shard}" for shard in range(SHARDS)]
    dataset = TFRecordDataset(names, num_parallel_reads=SHARDS, filesystem=filesystem)
    with dataset.iterate() as elements:
        others = [name for name in filesystem.read if name != str(slow)]
        full = QUEUE_BYTES - BLOCK_BYTES  # the next block does not fit
        with filesystem.changed:
            assert filesystem.changed.wait_for(lambda: all(filesystem.read[name] >= full for name in others), 60)
        assert filesystem.read[str(slow)] == 0
        filesystem.gate.set()
        expected = [record(shard, index) for index in range(RECORDS) for shard in range(SHARDS)]
        assert [element[:8] for element in elements] == [element[:8] for element in expected]


def test_a_slow_shard_lets_no_other_run_away(folder: Path) -> None:
    filesystem = Gated(folder, slow="0")
    names = [f"gated://{shard}" for shard in range(SHARDS)]
    budget = 10 << 20
    dataset = TFRecordDataset(names, num_parallel_reads=SHARDS, filesystem=filesystem)
    with dataset.with_options(memory_budget=budget).iterate() as elements:
        with filesystem.changed:
            assert filesystem.changed.wait_for(lambda: all(filesystem.read[name] for name in "123"), 60)
        filesystem.gate.set()
        for taken, element in enumerate(elements):
            in_hands = SHARDS * (BLOCK_BYTES + RECORD_BYTES)  # what is read and not yet framed
            assert sum(filesystem.read.values()) <= taken * len(element) + budget + in_hands
