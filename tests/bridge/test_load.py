"""How much a channel holds, and when its waiting put goes on; without threads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.bridge.channel import Load


def test_an_item_that_is_heavier_than_the_limit_waits_for_an_empty_queue() -> None:
    load = Load(10)
    assert load.fits(1000)
    load.put(1)
    assert not load.fits(1000)
    load.wait_for(1000)
    assert load.take(1)
    assert load.fits(1000)


@pytest.mark.parametrize(("weight", "left"), [(1, 50), (40, 50), (60, 40), (100, 0), (500, 0)])
def test_a_put_is_woken_when_half_is_free_and_its_item_fits(weight: int, left: int) -> None:
    load = Load(100)
    load.put(100)
    load.wait_for(weight)
    woken_at = [load.queued for _ in range(100) if load.take(1)]
    assert woken_at == [left]
    assert load.fits(weight)


def test_nothing_is_woken_while_no_put_waits() -> None:
    load = Load(10)
    load.put(10)
    assert not load.take(10)


@given(
    limit=st.integers(1, 20),
    weights=st.lists(st.integers(0, 30), max_size=40),
    takes=st.lists(st.booleans(), max_size=200),
)
def test_every_item_is_put_in_the_end(limit: int, weights: list[int], takes: list[bool]) -> None:
    """A put that waits is woken by one of the takes after it, whenever these come."""
    load = Load(limit)
    queued: list[int] = []
    rest = [*weights]
    waits = False
    takes = [*takes, *[True, False] * (len(weights) + 1)]
    for takes_one in takes:
        if takes_one and queued:
            waits = not load.take(queued.pop(0)) and waits
        elif not takes_one and rest and not waits:
            if load.fits(rest[0]):
                queued.append(rest[0])
                load.put(rest.pop(0))
            else:
                load.wait_for(rest[0])
                waits = True
        assert load.queued == sum(queued)
        assert load.queued <= max(limit, *queued, 0)
    assert not waits
    assert not rest
