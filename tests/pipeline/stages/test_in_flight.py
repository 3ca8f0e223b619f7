"""What is under way: whatever ends when, results come whole, in order where wanted, and positions are exact."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.pipeline.elements.chunk import Chunk, Position
from streamrec.pipeline.elements.columns import Columns
from streamrec.pipeline.sources.in_memory import Numbered
from streamrec.pipeline.stages.map.in_flight import Delivered, Flight, Haul

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
        self.flight = Flight(self.ordered, self.done)
        self.hauls: list[Haul] = []
        self.chunks = []
        at = 0
        for size in self.sizes:
            start, at = max(self.first, at), at + size
            if at > self.first or (not size and start == self.first):
                elements = Columns(np.arange(start, at))
                self.chunks.append(Chunk(elements, Numbered(start), 8 * len(elements)))

    def step(self) -> list[tuple[int, Position]]:
        """Something happens; returns what was delivered: each element, and the position behind it."""
        flight, draw = self.flight, self.draw
        deed = draw.randrange(4)
        if deed == 0 and self.chunks:
            flight.feed(self.chunks.pop(0))
        elif deed == 0 and not flight.ended:
            flight.end(None)
        elif deed == 1 and flight.pending:
            self.hauls.append(flight.start(draw.randint(1, 4)))
        elif deed == 2 and self.hauls:
            haul = draw.choice(self.hauls)
            results = [int(number) for number in haul.elements][: draw.randint(1, 4)]
            flight.came(haul, results, len(results))
            self.hauls = [haul for haul in self.hauls if not haul.ended]
        elif deed == 3 and (chunk := flight.deliver()) is not None:
            return [(int(number), chunk.positions.at(index + 1)) for index, number in enumerate(chunk.elements)]
        return []

    def rest(self) -> list[tuple[int, Position]]:
        found = []
        while not (self.flight.ended and self.flight.idle):
            found += self.step()
        return found


@settings(deadline=None)
@given(sizes=RUNS, ordered=st.booleans(), seed=st.integers())
def test_everything_comes_once_and_nothing_is_held_at_the_end(sizes: list[int], ordered: bool, seed: int) -> None:
    flying = Flying(sizes, ordered, random.Random(seed))
    numbers = [number for number, _ in flying.rest()]
    assert (numbers if ordered else sorted(numbers)) == list(range(sum(sizes)))
    flight = flying.flight
    assert (flight.input_bytes, flight.result_bytes, flight.at_work, flight.undelivered) == (0, 0, 0, 0)


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
    flight = Flight(ordered)
    flight.feed(Chunk(Columns(np.arange(6)), Numbered(0), 48))
    first, second = flight.start(3), flight.start(3)
    flight.came(second, [3], 1, ValueError("four"))
    if ordered:
        assert flight.deliver() is None
        flight.came(first, [0, 1, 2], 3)
    chunk = flight.deliver()
    assert chunk is not None
    assert list(chunk.elements) == ([0, 1, 2, 3] if ordered else [3])
    with pytest.raises(ValueError, match="four"):
        flight.deliver()


def test_an_error_of_the_input_waits_for_all_results() -> None:
    flight = Flight(ordered=False)
    flight.feed(Chunk(Columns(np.arange(2)), Numbered(0), 16))
    haul = flight.start(2)
    flight.end(OSError("the input"))
    assert flight.deliver() is None
    flight.came(haul, ["a", "b"], 2)
    assert flight.deliver() is not None
    with pytest.raises(OSError, match="the input"):
        flight.deliver()
    assert flight.deliver() is None
