"""Datasets of datasets: what runs beside what, and what is left when they are closed."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import numpy as np
import pytest

from streamrec import Dataset
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Position
from streamrec.pipeline.engine.description import Chain, Source
from streamrec.pipeline.engine.run import RunContext


@dataclass(eq=False)
class Gate:
    """Where a `Gated` source waits, and where it tells that all its chunks went on."""

    opened: anyio.Event = field(default_factory=anyio.Event)
    passed: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True)
class Gated(Source):
    """Three chunks of five numbers each, behind a gate."""

    first: int
    gate: Gate

    def lines(self) -> Iterator[str]:
        yield f"Gated({self.first})"

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        await self.gate.opened.wait()
        for start in range(self.first, self.first + 15, 5):
            yield Chunk(list(range(start, start + 5)), Nowhere(), 5)
        self.gate.passed.set()


class Nowhere:
    def at(self, index: int) -> Position:
        return {}


def gated() -> tuple[list[Gate], list[Dataset[Any]]]:
    gates = [Gate(), Gate(), Gate()]
    return gates, [Dataset(Chain(Gated(number * 100, gate))) for number, gate in enumerate(gates)]


GATED = [[number * 100 + index for index in range(15)] for number in range(3)]


def combined(datasets: list[Dataset[Any]]) -> list[tuple[Dataset[Any], list[int]]]:
    """Ways to join three datasets, and what they give."""
    rounds = [number for row in zip(*GATED, strict=True) for number in row]
    flat = [number for row in GATED for number in row]
    return [
        (Dataset.range(3).interleave(lambda n: datasets[n], 3), rounds),
        (Dataset.range(3).flat_map(lambda n: datasets[n]), flat),
        (Dataset.choose_from_datasets(datasets, Dataset.from_tensor_slices(np.arange(45) % 3)), rounds),
        (Dataset.zip(*datasets).flat_map(lambda *row: Dataset.from_tensor_slices(list(row))), rounds),
    ]


@pytest.mark.parametrize("way", range(4))
async def test_a_slow_one_does_not_idle_the_others(way: int) -> None:
    gates, datasets = gated()
    dataset, wanted = combined(datasets)[way]
    async with dataset.aiterate() as elements:
        with anyio.fail_after(30):
            for gate in gates[1:]:
                gate.opened.set()
                await gate.passed.wait()  # all its chunks are there, while the first dataset has given nothing
            gates[0].opened.set()
            assert [int(element) async for element in elements] == wanted


async def test_in_any_order_others_come_before_a_slow_one() -> None:
    gates, datasets = gated()
    dataset = Dataset.range(3).interleave(lambda n: datasets[n], 3, deterministic=False)
    async with dataset.aiterate() as elements:
        with anyio.fail_after(30):
            gates[1].opened.set()
            gates[2].opened.set()
            found = [await anext(elements) for _ in range(30)]
            assert sorted(found) == GATED[1] + GATED[2]
            gates[0].opened.set()
            assert [element async for element in elements] == GATED[0]


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("given", [0, 1])
async def test_closing_leaves_no_task(way: int, given: int) -> None:
    before = asyncio.all_tasks()
    gates, datasets = gated()
    async with combined(datasets)[way][0].aiterate() as elements:
        if given:
            for gate in gates:
                gate.opened.set()
            assert await anext(elements) == 0
        else:
            gates[1].opened.set()
            with anyio.fail_after(30):
                await gates[1].passed.wait()
    assert asyncio.all_tasks() == before
