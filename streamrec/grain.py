"""A Dataset as Grain's `IterDataset`, whose iterator has `get_state` and `set_state`.

    records = streamrec.TFRecordDataset("s3://b/train-*").distribute().parse_example(features)
    batches = streamrec.grain.IterDataset(records).map(augment).batch(256)

Rules:
- As usual in Grain, each iterator of an IterDataset returns the same elements: those of one epoch.
  For several epochs, each with a new order, use streamrec's `dataset.repeat(n)`.
- `mp_prefetch` gives each worker process its slice; `distribute` then assigns it its part of the
  shards.
- A state is one string, so that all states have the same structure.

Needs the extra `grain`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grain

from streamrec import Dataset
from streamrec.errors import LoopThreadError, PositionMismatchError
from streamrec.pipeline import DatasetIterator
from streamrec.pipeline.dataset import check_dataset
from streamrec.pipeline.dividing import check_assigned
from streamrec.pipeline.engine.ranks import Rank, rank_here

__all__ = ["IterDataset"]


def __dir__() -> list[str]:
    """Only what is public, so that completion shows no helper."""
    return __all__


KEY = "streamrec"


class IterDataset(grain.IterDataset):  # type: ignore[misc, type-arg, unused-ignore]
    """A Dataset as the source of a Grain pipeline.

    Args:
        dataset: The Dataset to read. With several processes, or workers of `mp_prefetch`, it must
            contain `distribute`. The rank of this process is looked up now, and sent to its
            workers.

    Examples:
        >>> numbers = IterDataset(Dataset.range(5)).map(int)
        >>> elements = iter(numbers)
        >>> next(elements), next(elements)
        (0, 1)
        >>> state = elements.get_state()
        >>> list(elements)
        [2, 3, 4]
        >>> elements.set_state(state)
        >>> next(elements)
        2
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        super().__init__()
        check_dataset("dataset", dataset)
        self._dataset = dataset
        self._rank = dataset.options.rank or rank_here()

    def __iter__(self) -> Any:
        """Returns an iterator from the start of the epoch.

        Raises:
            ValueError: Several processes iterate, and `distribute` does not assign the data to
                them.
        """
        check_assigned(self._dataset, self._rank)
        return Iterator(
            self._dataset.with_options(rank=self._rank.rank, world_size=self._rank.world_size)
        )

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Makes this process worker `sl.start` of `sl.step`.

        Grain calls it in each worker of `mp_prefetch`.
        """
        worker = sl.start or 0
        workers = sl.step or 1
        self._rank = Rank(self._rank.rank * workers + worker, self._rank.world_size * workers)

    def __str__(self) -> str:
        return f"streamrec.grain.IterDataset({self._dataset!r})"


class Iterator(grain.DatasetIterator):  # type: ignore[misc, type-arg, unused-ignore]
    """An iteration, which begins with the first call."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        super().__init__()
        self._dataset = dataset
        self._run: DatasetIterator[Any] | None = None

    def __next__(self) -> Any:
        """Returns the next element.

        Raises:
            ValueError: The iterator was closed.
            StreamrecError: The data or the store failed; raised after all elements before it.
        """
        if self._closed:
            raise ValueError("this iterator was closed; iterate over its dataset again")
        return next(self._start())

    def get_state(self) -> dict[str, Any]:
        """The position of the next element, as one string of JSON under one key."""
        return {KEY: json.dumps(self._start().state_dict())}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where a state was saved.

        Raises:
            PositionMismatchError: `state` is not a state, or another pipeline saved it.
        """
        if not isinstance(state, dict) or KEY not in state:
            raise PositionMismatchError(
                f"this is not a state of this iterator, which has the key {KEY!r}: pass the "
                "result of get_state()"
            )
        self._end()
        self._run = self._fresh().iterate(json.loads(state[KEY]))

    def start_prefetch(self) -> None:
        """Starts reading ahead."""
        self._start()

    def close(self) -> None:
        """Stops reading, and closes the connections before it returns."""
        super().close()
        self._end()

    def _start(self) -> DatasetIterator[Any]:
        if self._run is None:
            self._run = self._fresh().iterate()
        return self._run

    def _fresh(self) -> Dataset[Any]:
        """A copy of the dataset at its first epoch.

        Iterating the same dataset again would be the next epoch.
        """
        return self._dataset.with_options(epoch=self._dataset.options.epoch)

    def _end(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        run = self._run
        self._run = None
        # Grain may close an iterator after modules have lost their names.
        if run is not None and not exiting():
            # The garbage collector runs this on the loop's thread, too.
            with suppress(LoopThreadError):
                run.close()
