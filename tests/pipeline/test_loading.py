"""What the loaders of all adapters share: epochs and their states, elements that are converted
ahead, and the leaves of elements. Without a library of arrays.
"""

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from streamrec import Dataset, Frames, RaggedTensor
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.loading import Epochs, Lookahead, convert_leaves
from tests.runs import until_error

Pair = namedtuple("Pair", ["first", "second"])


def epochs_of(dataset: Dataset[Any], ahead: int = 1) -> Epochs[int]:
    return Epochs(dataset, int, int, ahead, lambda: Rank(0, 1))


def test_each_iteration_is_the_next_epoch_and_one_may_be_chosen() -> None:
    epochs = epochs_of(Dataset.range(20).shuffle(9, seed=1))
    orders = []
    for number in range(3):
        assert epochs.epoch == number
        orders.append(list(epochs))
    assert len(set(map(tuple, orders))) == 3
    epochs.set_epoch(1)
    assert epochs.epoch == 1
    assert list(epochs) == orders[1]


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_a_state_continues_its_epoch_and_then_the_next_one_comes(ahead: int) -> None:
    dataset = Dataset.range(6).shuffle(4, seed=1)
    whole = epochs_of(dataset)
    first, second = list(whole), list(whole)
    epochs = epochs_of(dataset, ahead)
    assert epochs.state_dict() == {}
    iterator = iter(epochs)
    for place in range(5):
        assert next(iterator) == first[place]
        resumed = epochs_of(dataset, ahead)
        resumed.load_state_dict(epochs.state_dict())
        assert resumed.epoch == 0
        assert list(resumed) == first[place + 1 :]
        assert resumed.epoch == 1
        assert list(resumed) == second


def test_an_empty_state_begins_from_the_start() -> None:
    epochs = epochs_of(Dataset.range(3))
    epochs.load_state_dict({})
    assert epochs.epoch == 0
    assert list(epochs) == [0, 1, 2]


def test_an_element_that_cannot_be_converted_comes_after_those_before_it() -> None:
    def fail_at_3(number: int) -> int:
        if number == 3:
            raise ZeroDivisionError
        return int(number)

    run = Dataset.range(6).iterate()
    lookahead = Lookahead(run, fail_at_3, 4)
    found, _ = until_error(lookahead, ZeroDivisionError)
    assert found == [0, 1, 2]
    assert list(lookahead) == []
    run.close()


def test_a_state_counts_no_element_that_was_only_converted_ahead() -> None:
    dataset = Dataset.range(9)
    lookahead = Lookahead(dataset.iterate(), int, 5)
    assert [next(lookahead) for _ in range(2)] == [0, 1]
    state = lookahead.state_dict()
    lookahead.close()
    assert lookahead.state_dict() == state
    assert list(map(int, dataset.iterate(state))) == list(range(2, 9))


def test_a_state_after_the_end_is_the_start_of_the_next_epoch() -> None:
    dataset = Dataset.range(4).shuffle(4, seed=2)
    lookahead = Lookahead(dataset.iterate(), int, 1)
    assert sorted(lookahead) == [0, 1, 2, 3]
    state = lookahead.state_dict()
    assert state["epoch"] == 1
    following = [int(number) for number in dataset.with_options(epoch=1)]
    assert [int(number) for number in dataset.iterate(state)] == following


def test_leaves_have_the_names_that_lead_to_them() -> None:
    found = {}

    def leaf(array: Any, name: str) -> str:
        found[name] = np.asarray(array).tolist()
        return f"<{name}>"

    element = {
        "id": np.arange(2),
        "pair": Pair(np.float32(0.5), (np.int64(3), b"bytes")),
        "ragged": RaggedTensor(np.arange(3), (np.array([0, 1, 3]),)),
        "names": np.array([b"a", b"b"], object),
        "records": Frames.of([b"x", b"y"]),
    }
    converted = convert_leaves(element, leaf)
    assert converted["id"] == "<id>"
    assert converted["pair"] == Pair("<pair.first>", ("<pair.second.0>", b"bytes"))
    assert converted["names"] == [b"a", b"b"]
    assert converted["records"] == [b"x", b"y"]
    assert found["ragged.flat_values"] == [0, 1, 2]
    assert found["pair.second.0"] == 3


def test_a_column_of_images_is_a_list_of_arrays() -> None:
    images = np.empty(2, object)
    images[:] = [np.zeros((1, 2)), np.ones((2, 1))]
    assert convert_leaves(images, lambda array, name: array.shape) == [(1, 2), (2, 1)]
