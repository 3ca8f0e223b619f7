"""Turns of an interleave: how many elements each input gives, and whose turn is next."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import AUTOTUNE
from streamrec.pipeline.sources.interleave import AUTO_CYCLE, Plan, TurnShares, shares_of


def turns(inputs: int, block: int, given_before: int = 0) -> list[int]:
    """Which input gives each element, in turns of `block`; the first turn has begun."""
    endless = (number for _ in range(1000) for number in range(inputs) for _ in range(block))
    return list(islice(endless, given_before, 300))


@given(count=st.integers(0, 200), inputs=st.integers(1, 6), block=st.integers(1, 5))
def test_shares_are_those_of_turns(count: int, inputs: int, block: int) -> None:
    order = turns(inputs, block)[:count]
    assert shares_of(count, inputs, block) == [order.count(number) for number in range(inputs)]


@given(count=st.integers(0, 200), inputs=st.integers(1, 6), block=st.integers(1, 5), data=st.data())
def test_the_next_turn(count: int, inputs: int, block: int, data: st.DataObject) -> None:
    before = data.draw(st.integers(0, block - 1))
    slots = data.draw(st.permutations(range(10)))[:inputs]
    found = TurnShares(tuple(slots), tuple(slots), block, before).next(count)
    order = turns(inputs, block, before)
    assert found == (slots[order[count]], (before + count) % block)


def test_a_round_that_is_not_complete_ends_at_a_slot_that_gives_nothing_yet() -> None:
    shares = TurnShares((3, 4), (3, 4, 5), 2, 0)
    assert [shares.next(count) for count in range(5)] == [(3, 0), (3, 1), (4, 0), (4, 1), (5, 0)]


def test_plans() -> None:
    assert Plan.of(None) == Plan.of(AUTOTUNE) == Plan(AUTO_CYCLE, 1, True)
    assert Plan.of(3, 2, None) == Plan(3, 2, None)
    assert Plan.of(3, 2, None).within(False) == Plan(3, 2, False)
    assert Plan.of(3, 2, True).within(False) == Plan(3, 2, True)
    assert [Plan(length).open_inputs for length in (1, 4, 8, 12, 16)] == [3, 6, 10, 15, 20]
    for arguments in ((0,), (-2,), (1, 0), ("a",), (1, 1, "yes")):
        with pytest.raises((ValueError, TypeError)):
            Plan.of(*arguments)  # type: ignore[arg-type]
