"""Wrappers that divide a data set, as their attributes describe them: without the libraries, whose
own classes `tests/adapters/test_accelerate.py` reads through.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.engine.dividers import (
    OTHERS,
    Divider,
    divider_of,
    in_turns,
    refuse_sampling,
)
from streamrec.pipeline.engine.ranks import Rank


class IterableDatasetShard:
    """Has the attributes by which accelerate's class divides."""

    def __init__(self, **attributes: Any) -> None:
        self.process_index = 1
        self.num_processes = 4
        self.batch_size = 8
        self.drop_last = False
        self.split_batches = False
        vars(self).update(attributes)


class DataLoaderDispatcher:
    """Has the attributes by which accelerate's class dispatches."""

    def __init__(self, collate_fn: object) -> None:
        self.state = SimpleNamespace(process_index=2, num_processes=3)
        self.batch_size = 5
        self.num_workers = 1
        self.collate_fn = collate_fn


def default_collate(examples: list[Any]) -> list[Any]:
    return examples


MODULES = {
    "accelerate.data_loader": SimpleNamespace(
        IterableDatasetShard=IterableDatasetShard, DataLoaderDispatcher=DataLoaderDispatcher
    ),
    "torch.utils.data": SimpleNamespace(default_collate=default_collate),
}


@pytest.mark.parametrize(
    ("attributes", "turn", "fills_up"),
    [
        ({}, 8, True),
        ({"drop_last": True}, 8, False),
        ({"split_batches": True}, 2, True),  # a quarter of one batch for each process
        ({"batch_size": None}, 1, True),
    ],
)
def test_a_process_keeps_turns_of_a_batch_or_of_its_part_of_one(
    attributes: dict[str, Any], turn: int, fills_up: bool
) -> None:
    divider = divider_of(IterableDatasetShard(**attributes), MODULES)
    assert divider is not None
    assert divider.rank == divider.reader == Rank(1, 4)
    assert (divider.turn, divider.fills_up) == (turn, fills_up)
    assert not divider.dispatches
    assert not divider.only_receives


@pytest.mark.parametrize(("collate", "sends_tensors"), [(default_collate, True), (list, False)])
def test_process_0_reads_all_of_what_is_dispatched(collate: object, sends_tensors: bool) -> None:
    divider = divider_of(DataLoaderDispatcher(collate), MODULES)
    assert divider is not None
    assert divider.dispatches
    assert divider.only_receives
    assert divider.reader == Rank(0, 1)
    assert (divider.batch_size, divider.workers) == (5, 1)
    assert divider.sends_tensors is sends_tensors


def test_other_objects_and_absent_libraries_divide_nothing() -> None:
    assert divider_of(object(), MODULES) is None
    assert divider_of(IterableDatasetShard(), {}) is None


def test_a_class_without_an_attribute_is_an_error_that_names_it() -> None:
    shard = IterableDatasetShard()
    del shard.drop_last
    with pytest.raises(ValueError, match=r"does not know how this version of it does.*drop_last"):
        divider_of(shard, MODULES)


@given(
    count=st.integers(0, 12),
    turn=st.integers(1, 4),
    processes=st.integers(1, 3),
    fills_up=st.booleans(),
)
def test_each_process_gives_its_own_elements_in_its_turns(
    count: int, turn: int, processes: int, fills_up: bool
) -> None:
    for rank in range(processes):
        divider = Divider(
            name="",
            rank=Rank(rank, processes),
            batch_size=turn,
            turn=turn,
            fills_up=fills_up,
        )
        places = list(in_turns(range(count), divider))
        kept = [
            element for place, element in enumerate(places) if place // turn % processes == rank
        ]
        others = [
            element for place, element in enumerate(places) if place // turn % processes != rank
        ]
        assert kept[:count] == list(range(count))
        assert set(others) <= {OTHERS}
        if fills_up:
            assert len(kept) == -(-count // turn) * turn
            assert len(places) == len(kept) * processes


@pytest.mark.parametrize(
    "arguments",
    [
        {"train_sampling_strategy": "group_by_length"},
        {"train_sampling_strategy": "batch_rebalance"},
        {"group_by_length": True},
    ],
)
def test_a_trainer_that_orders_by_length_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs a data set that is indexed by numbers"):
        refuse_sampling(SimpleNamespace(**arguments))


def test_a_trainer_that_reads_in_order_is_not_refused() -> None:
    refuse_sampling(SimpleNamespace(train_sampling_strategy="random", group_by_length=False))
    refuse_sampling(None)
