"""Pulls of an interleave: whose turns they take, how many elements, and when they wait."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.sources.pulls import (
    CHUNK_BYTES,
    BatchEnds,
    Pull,
    PullPlanner,
    TurnShares,
    shares_of,
)


def input_of_each_element(inputs: int, block: int, given_before: int = 0) -> list[int]:
    """Which input gives each element, in turns of `block`; the first turn has begun."""
    endless = (number for _ in range(1000) for number in range(inputs) for _ in range(block))
    return list(islice(endless, given_before, 300))


@given(count=st.integers(0, 200), inputs=st.integers(1, 6), block=st.integers(1, 5))
def test_shares_are_those_of_turns(count: int, inputs: int, block: int) -> None:
    order = input_of_each_element(inputs, block)[:count]
    assert shares_of(count, inputs, block) == [order.count(number) for number in range(inputs)]


@given(count=st.integers(0, 200), inputs=st.integers(1, 6), block=st.integers(1, 5), data=st.data())
def test_the_next_turn_is_that_of_the_input_that_gives_the_next_element(
    count: int, inputs: int, block: int, data: st.DataObject
) -> None:
    before = data.draw(st.integers(0, block - 1))
    slots = data.draw(st.permutations(range(10)))[:inputs]
    found = TurnShares(tuple(slots), tuple(slots), block, before).next(count)
    order = input_of_each_element(inputs, block, before)
    assert found == (slots[order[count]], (before + count) % block)


def test_a_round_that_is_not_complete_ends_at_a_slot_that_gives_nothing_yet() -> None:
    shares = TurnShares((3, 4), (3, 4, 5), 2, 0)
    assert [shares.next(count) for count in range(5)] == [(3, 0), (3, 1), (4, 0), (4, 1), (5, 0)]


@dataclass(eq=False)
class ArrivedInput:
    """An input with chunks of these sizes."""

    chunks: list[int]
    comes: bool = False
    typical_bytes: int = 1

    @property
    def available(self) -> int:
        return sum(self.chunks)

    @property
    def first(self) -> int:
        return self.chunks[0] if self.chunks else 0


def plan(inputs: list[Any], ready: list[int] | None = None, **changes: Any) -> Pull:
    arguments: dict[str, Any] = {
        "block": 1,
        "given": 0,
        "ends": BatchEnds(1, 0),
        "max_bytes": 0,
        "complete": True,
        "ordered": True,
        "whole_blocks": False,
        **changes,
    }
    slots = list(range(len(inputs))) if ready is None else ready
    return PullPlanner(slots=inputs, **arguments).plan(slots)


def test_without_an_order_a_pull_is_a_block_as_it_arrived() -> None:
    """The drawing of `_block_as_it_arrived`."""
    pull = plan([ArrivedInput([5, 3]), ArrivedInput([4])], ordered=False, whole_blocks=True)
    assert pull.count == 5
    assert pull.turns.next(5) == (1, 0)


def test_one_turn_ends_where_a_batch_does() -> None:
    """The drawing of `_one_turn`, with batches that end after 3 and 8 elements, or only after 9."""
    inputs = [ArrivedInput([7, 7], comes=True), ArrivedInput([])]
    assert plan(inputs, block=20, ends=BatchEnds(5, 2)).count == 3
    assert plan(inputs, block=20, ends=BatchEnds(9, 0)).count == 9
    waiting = plan(inputs, block=20, ends=BatchEnds(20, 0))
    assert (waiting.count, waiting.awaited) == (0, {inputs[0]: 20})
    assert (
        plan([ArrivedInput([7, 7]), ArrivedInput([])], block=20, ends=BatchEnds(20, 0)).count == 7
    )


def test_whole_rounds_end_where_a_batch_does() -> None:
    """The drawing of `_whole_rounds`."""
    inputs = [ArrivedInput([7]), ArrivedInput([5])]
    assert plan(inputs, block=2).count == 8
    assert plan(inputs, block=2, ends=BatchEnds(6, 0)).count == 6
    incomplete = plan([ArrivedInput([7]), ArrivedInput([1])], block=2)
    assert (incomplete.count, incomplete.turns.next(3)) == (3, (1, 1))


def test_a_pull_of_long_turns_is_one_turn() -> None:
    inputs = [ArrivedInput([8], typical_bytes=CHUNK_BYTES // 4), ArrivedInput([8])]
    assert plan(inputs, block=4).count == 4


def test_an_empty_slot_that_an_unknown_input_may_take_ends_the_round() -> None:
    inputs = [ArrivedInput([4]), ArrivedInput([4]), None]
    assert plan(inputs, [0, 1], complete=True).count == 8
    unknown = plan(inputs, [0, 1], complete=False)
    assert (unknown.count, unknown.turns.next(2)) == (2, (2, 0))
    assert plan(inputs, [0, 1], complete=False, ordered=False).count == 8


ARRIVED = st.builds(
    ArrivedInput,
    st.lists(st.integers(1, 9), max_size=3),
    st.booleans(),
    st.sampled_from([1, 1000, 1 << 20, 1 << 24]),
)


@given(
    first=st.builds(
        ArrivedInput, st.lists(st.integers(1, 9), min_size=1, max_size=3), st.booleans()
    ),
    others=st.lists(ARRIVED, max_size=4),
    block=st.integers(1, 6),
    batch=st.integers(1, 12),
    pulled=st.integers(0, 30),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    data=st.data(),
)
def test_a_pull_takes_what_has_arrived_or_waits_for_what_comes(
    first: ArrivedInput,
    others: list[ArrivedInput],
    block: int,
    batch: int,
    pulled: int,
    flags: tuple[bool, bool, bool],
    data: st.DataObject,
) -> None:
    inputs = [first, *others]
    complete, ordered, whole_blocks = flags
    given_before = data.draw(st.integers(0, block - 1), "given")
    # Without a fixed order, only slots with elements are ready.
    ready = [slot for slot, entry in enumerate(inputs) if ordered or entry.available or slot == 0]
    pull = plan(
        inputs,
        ready,
        block=block,
        given=given_before,
        ends=BatchEnds(batch, pulled),
        complete=complete,
        ordered=ordered,
        whole_blocks=whole_blocks,
    )
    if not pull.count:
        assert pull.awaited
        assert all(entry.comes for entry in pull.awaited)
        assert all(needed > entry.available for entry, needed in pull.awaited.items())
        return
    turns = pull.turns
    assert not pull.awaited
    shares = shares_of(pull.count, len(turns.ready), turns.block)
    for slot, share in zip(turns.ready, shares, strict=True):
        assert share <= inputs[slot].available
    if len(turns.ready) == 1 and len(turns.order) > 1:
        assert pull.count <= turns.block - turns.given  # within one turn
