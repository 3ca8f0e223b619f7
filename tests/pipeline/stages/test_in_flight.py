"""What is under way: whatever ends when, results come whole, in order where wanted, and positions are exact."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import Columns
from streamrec.pipeline.elements.positions import NumberedPositions, Position
from streamrec.pipeline.sources.parallel_map.in_flight import Delivered, ElementRun, InFlight

RUNS = st.lists(st.integers(0, 6), max_size=8)


@dataclass
class Flying:
    """A flight over the numbers from `first` on, driven by chance."""

    sizes: Sequence[int]
    ordered: bool
    draw: random.Random
    first: int = 0
    done: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        self.in_flight = InFlight(self.ordered, self.done)
        self.element_runs: list[ElementRun] = []
        self.chunks = []
        at = 0
        for size in self.sizes:
            start, at = max(self.first, at), at + size
            if at > self.first or (not size and start == self.first):
                elements = Columns(np.arange(start, at))
                self.chunks.append(Chunk(elements, NumberedPositions(start), 8 * len(elements)))

    def step(self) -> list[tuple[int, Position]]:
        """Something happens; returns what was delivered: each element, and the position behind it."""
        in_flight, draw = self.in_flight, self.draw
        deed = draw.randrange(4)
        if deed == 0 and self.chunks:
            in_flight.feed(self.chunks.pop(0))
        elif deed == 0 and not in_flight.ended:
            in_flight.end(None)
        elif deed == 1 and in_flight.pending:
            self.element_runs.append(in_flight.start(draw.randint(1, 4)))
        elif deed == 2 and self.element_runs:
            element_run = draw.choice(self.element_runs)
            results = [int(number) for number in element_run.elements][: draw.randint(1, 4)]
            in_flight.came(element_run, results, len(results))
            self.element_runs = [element_run for element_run in self.element_runs if not element_run.ended]
        elif deed == 3 and (chunk := in_flight.deliver()) is not None:
            return [(int(number), chunk.positions.at(index + 1)) for index, number in enumerate(chunk.elements)]
        return []

    def rest(self) -> list[tuple[int, Position]]:
        found = []
        while not (self.in_flight.ended and self.in_flight.idle):
            found += self.step()
        return found


@settings(deadline=None)
@given(sizes=RUNS, ordered=st.booleans(), seed=st.integers())
def test_everything_comes_once_and_nothing_is_held_at_the_end(sizes: list[int], ordered: bool, seed: int) -> None:
    flying = Flying(sizes, ordered, random.Random(seed))
    numbers = [number for number, _ in flying.rest()]
    assert (numbers if ordered else sorted(numbers)) == list(range(sum(sizes)))
    in_flight = flying.in_flight
    assert (in_flight.input_bytes, in_flight.result_bytes, in_flight.at_work, in_flight.undelivered) == (0, 0, 0, 0)


@settings(deadline=None)
@given(sizes=RUNS, ordered=st.booleans(), then=st.booleans(), seed=st.integers())
def test_a_run_goes_on_exactly_after_any_element(sizes: list[int], ordered: bool, then: bool, seed: int) -> None:
    draw = random.Random(seed)
    before: list[int] = []
    for number, position in Flying(sizes, ordered, draw).rest():
        before.append(number)
        state = position["source"]
        first = state["inner"]["source"]["next"]
        resumed = [number for number, _ in Flying(sizes, then, draw, first, state["done"]).rest()]
        assert sorted(before + resumed) == list(range(sum(sizes)))
        assert not ordered or not state["done"]


@settings(deadline=None)
@given(order=st.permutations(range(12)))
def test_what_was_delivered_is_known(order: list[int]) -> None:
    delivered, there = Delivered(), set()
    for number in order:
        delivered.add(number, number + 1)
        there.add(number)
        missing = [number for run in delivered.missing(0, 12) for number in range(*run)]
        assert missing == [number for number in range(12) if number not in there]
        assert delivered.low == min(set(range(13)) - there)


@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_waits_for_the_results_before_it(ordered: bool) -> None:
    in_flight = InFlight(ordered)
    in_flight.feed(Chunk(Columns(np.arange(6)), NumberedPositions(0), 48))
    first, second = in_flight.start(3), in_flight.start(3)
    in_flight.came(second, [3, None], 2, [(1, ValueError("four"))])
    if ordered:
        assert in_flight.deliver() is None
        in_flight.came(first, [0, 1, 2], 3)
    chunk = in_flight.deliver()
    assert chunk is not None
    assert list(chunk.elements) == ([0, 1, 2, 3] if ordered else [3])
    failure = in_flight.deliver()
    assert failure is not None
    assert (len(failure.elements), repr(failure.error)) == (0, "ValueError('four')")
