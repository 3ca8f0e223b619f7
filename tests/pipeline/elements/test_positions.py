"""Positions of several inputs: each has a cursor of its own, which moves with what it gives."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.elements.positions import (
    Joined,
    NumberedPositions,
    OneElement,
    RecordLocation,
    SeveralInputs,
    trace_origins,
)
from streamrec.pipeline.sources.combine.sample import positions_of_choices
from streamrec.pipeline.sources.combine.zip import positions_of_rows
from streamrec.pipeline.sources.interleave import positions_in_turns
from streamrec.pipeline.sources.pulls import TurnShares


def input_from(first: int) -> Joined:
    """An input whose elements have numbers from `first` on, as the records of a shard."""
    numbers = NumberedPositions(
        first, origins_of=lambda number, row: (RecordLocation("shard", number),)
    )
    return Joined(((numbers, 0, 1000),))


@st.composite
def several_inputs(draw: st.DrawFn) -> tuple[SeveralInputs, int]:
    """Positions of up to 30 elements that inputs gave, and how many elements there are."""
    inputs = tuple(input_from(1000 * number) for number in range(draw(st.integers(1, 4))))
    count = draw(st.integers(1, 30))
    kind = draw(st.sampled_from(["zipped", "sampled", "interleaved"]))
    if kind == "zipped":
        return positions_of_rows(inputs), count
    if kind == "sampled":
        chosen = draw(
            st.lists(st.integers(0, len(inputs) - 1), min_size=count, max_size=count), "chosen"
        )
        positions = positions_of_choices(
            inputs,
            choices=input_from(0),
            count=count,
            kept=np.arange(count),
            chosen=np.array(chosen),
        )
        return positions, count
    slots = draw(st.permutations([*inputs, None]))
    ready = tuple(slot for slot, each in enumerate(slots) if each is not None)
    turns = TurnShares(ready, ready, draw(st.integers(1, 4)), 0)
    return positions_in_turns(tuple(slots), turns, lambda _: {}), count


@given(several_inputs())
def test_only_the_cursor_of_the_input_that_gives_an_element_moves(
    drawn: tuple[SeveralInputs, int],
) -> None:
    positions, count = drawn
    inputs = positions.inputs
    assert [*positions.shares(0)] == [0] * len(inputs)
    for index in range(count):
        before = positions.shares(index)
        after = positions.shares(index + 1)
        grown = [new - old for old, new in zip(before, after, strict=True)]
        assert set(grown) <= {0, 1}
        assert sum(grown) in (1, len(inputs))
        numbers = [
            input_.at(share)["source"]["next"]
            for input_, share, is_giver in zip(inputs, before, grown, strict=True)
            if is_giver and input_ is not None
        ]
        assert len(numbers) == sum(grown)
        assert list(trace_origins(positions, index)) == [
            RecordLocation("shard", number) for number in numbers
        ]


def test_one_element_has_a_place_before_it_and_one_after_it() -> None:
    inputs = input_from(5)
    middle = OneElement(((inputs, 1, 2),), (input_from(50), 0))
    assert [middle.at(index) for index in (0, 1)] == [inputs.at(1), input_from(50).at(0)]
    last = OneElement(((inputs, 1, 2),), None)
    assert last.at(1) == {**inputs.at(1), "ended": True}
    numbers = [list(trace_origins(middle, 0, row)) for row in (0, 1, 2)]
    assert numbers == [[RecordLocation("shard", 6)], [RecordLocation("shard", 7)], []]
