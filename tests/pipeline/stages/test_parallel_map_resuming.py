"""map with several calls at once: states, in order and as results come."""

import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from streamrec import AUTOTUNE, Dataset
from tests.effort import draws
from tests.pipeline.stages.squares import square, square_soon
from tests.servers.resuming import assert_resumes_everywhere


@pytest.mark.parametrize("function", [square, square_soon])
def test_resuming_anywhere(function: Callable[..., Any]) -> None:
    mapped = Dataset.range(23).map(function, 3)
    assert_resumes_everywhere(mapped)
    assert_resumes_everywhere(mapped.batch(4).repeat(2))
    assert_resumes_everywhere(Dataset.range(9).repeat(2).map(function, 2).prefetch().map(square, 2).take(11))


@given(seed=st.integers(), calls=st.integers(1, 5))
@draws(20, HealthCheck.too_slow)
def test_what_was_delivered_out_of_order_comes_no_second_time(seed: int, calls: int) -> None:
    draw = random.Random(seed)
    dataset = Dataset.range(60).map(square_soon, calls, deterministic=False)
    iterator = dataset.iterate()
    found = [next(iterator) for _ in range(draw.randrange(60))]
    state = pickle.loads(pickle.dumps(iterator.state_dict()))
    iterator.close()
    assert sorted(found + list(dataset.iterate(state))) == [n * n for n in range(60)]


VERBS: list[Callable[[Dataset[Any]], Dataset[Any]]] = [
    lambda ds: ds.map(square, 3),
    lambda ds: ds.map(square_soon),
    lambda ds: ds.map(square_soon, AUTOTUNE),
    lambda ds: ds.prefetch(),
    lambda ds: ds.batch(3).map(np.negative, 2).unbatch(),
    lambda ds: ds.filter(lambda number: number % 3),
    lambda ds: ds.repeat(2).take(17),
    lambda ds: ds.concatenate(ds.map(square, 2)).skip(1),
]


@given(chain=st.lists(st.sampled_from(VERBS), min_size=1, max_size=4))
@draws(40, HealthCheck.too_slow)
def test_random_chains_resume_everywhere(chain: list[Callable[[Dataset[Any]], Dataset[Any]]]) -> None:
    dataset = Dataset.range(7)
    for verb in chain:
        dataset = verb(dataset)
    assert_resumes_everywhere(dataset.take(12))


def test_behind_an_input_without_an_order_results_keep_the_order_that_they_have() -> None:
    """What was delivered of an input is told by numbers, which would mean other elements in another run."""
    unordered = Dataset.range(40).map(square_soon, 3, False)
    positions = []
    with unordered.map(square_soon, 3, False).iterate() as elements:
        for _ in elements:
            positions.append(elements.state_dict()["position"]["source"])
    assert all(position["done"] == [] for position in positions)


@given(stop=st.integers(0, 19), then=st.booleans())
@draws(20)
def test_batches_of_what_came_out_of_order_hold_each_element_once(stop: int, then: bool) -> None:
    batches = Dataset.range(40).map(square_soon, 3, False).batch(4).map(np.negative, 2, False).repeat(2)
    iterator = batches.iterate()
    found = [next(iterator) for _ in range(stop)]
    state = iterator.state_dict()
    iterator.close()
    resumed = batches.with_options(deterministic=then).iterate(state)
    assert sorted(-np.concatenate([*found, *resumed])) == sorted([n * n for n in range(40)] * 2)


def test_a_state_is_good_for_another_number_of_calls_and_another_option() -> None:
    iterator = Dataset.range(60).map(square, 4).with_options(deterministic=False).iterate()
    found = [next(iterator) for _ in range(20)]
    state = iterator.state_dict()
    iterator.close()
    assert sorted(found + list(Dataset.range(60).map(square, 2).iterate(state))) == [n * n for n in range(60)]
