"""Which data sets a wrapper of another library can divide, and what it says of the others."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamrec import Dataset, FixedLenFeature, TFRecordDataset
from streamrec.pipeline.dividing import check_divided, ends_in_batches, given_ranks, is_batched
from streamrec.pipeline.engine.dividers import Divider
from streamrec.pipeline.engine.ranks import Rank

RECORDS = TFRecordDataset("a-*")
EVEN = RECORDS.distribute(even="drop", manifest="m.json")
FEATURES = {"id": FixedLenFeature([], np.int64)}
NAMES = {"name": FixedLenFeature([], bytes)}

IN_TURNS = Divider(name="Shard", rank=Rank(1, 2), batch_size=4, turn=4)
DISPATCHED = Divider(name="Dispatcher", rank=Rank(0, 2), batch_size=4)


@pytest.mark.parametrize(
    ("dataset", "divider"),
    [
        (EVEN, IN_TURNS),
        (EVEN.batch(4).unbatch(), IN_TURNS),
        (RECORDS, DISPATCHED),
        (RECORDS.batch(4), replace(DISPATCHED, batch_size=None)),
        (RECORDS.distribute(), replace(DISPATCHED, workers=2)),
        (RECORDS.distribute(rank=0, world_size=1), DISPATCHED),
        (
            RECORDS.batch(4).parse_example(FEATURES),
            replace(DISPATCHED, batch_size=None, sends_tensors=True),
        ),
    ],
)
def test_a_dataset_that_can_be_divided_is_taken(dataset: Dataset[Any], divider: Divider) -> None:
    check_divided(dataset, divider)


@pytest.mark.parametrize(
    ("dataset", "divider", "message"),
    [
        (EVEN.batch(4), IN_TURNS, "takes single examples"),
        (RECORDS.batch(4), DISPATCHED, "takes single examples"),
        (EVEN, replace(IN_TURNS, batch_size=None), "cannot divide a DataLoader with batch_size"),
        (RECORDS, IN_TURNS, "each of 2 processes would read all of this dataset"),
        (RECORDS.distribute(), IN_TURNS, "must get the same number of examples"),
        (RECORDS, replace(DISPATCHED, workers=2), "2 loader workers would each read all"),
        (RECORDS.distribute(rank=1, world_size=2), DISPATCHED, "leave these arguments out"),
        (EVEN.with_options(rank=1, world_size=2), IN_TURNS, "leave these arguments out"),
        (
            RECORDS.batch(4).parse_example(NAMES),
            replace(DISPATCHED, batch_size=None, sends_tensors=True),
            "sends only tensors to the other processes, but 'name' of this dataset",
        ),
    ],
)
def test_a_dataset_that_cannot_be_divided_is_refused(
    dataset: Dataset[Any], divider: Divider, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_divided(dataset, divider)


@pytest.mark.parametrize(
    ("dataset", "ends"),
    [
        (RECORDS, False),
        (RECORDS.batch(2), True),
        (RECORDS.batch(2).parse_example(FEATURES).skip(1), True),
        (RECORDS.batch(2).map(len), False),
        (RECORDS.batch(2).unbatch(), False),
        (RECORDS.batch(2).repeat(3), True),
        (RECORDS.repeat(3), False),
        (RECORDS.batch(2).prefetch(1).shuffle(4), True),
        (RECORDS.global_shuffle(1, index="a.index"), False),
        (RECORDS.global_shuffle(1, index="a.index", global_batch_size=8), True),
    ],
)
def test_elements_are_batches_for_sure_or_maybe_not(dataset: Dataset[Any], ends: bool) -> None:
    assert ends_in_batches(dataset.chain) is ends


def test_batches_that_are_taken_apart_are_no_batches() -> None:
    assert not is_batched(RECORDS)
    assert is_batched(RECORDS.batch(2))
    assert is_batched(RECORDS.global_shuffle(1, index="a.index", global_batch_size=8))
    assert not is_batched(RECORDS.batch(2).unbatch())


def test_ranks_that_the_user_gave_are_found_in_options_and_in_sources() -> None:
    assert list(given_ranks(RECORDS.distribute())) == []
    both = RECORDS.distribute(rank=1, world_size=3).with_options(rank=0, world_size=2)
    assert list(given_ranks(both)) == [Rank(0, 2), Rank(1, 3)]
