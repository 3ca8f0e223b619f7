"""Epochs, Lookahead, converted: what the loaders of PyTorch and JAX have in common.

Rules:
- An element is converted ahead of its turn only where it is there already, so one that is ready waits for no other.
- The state says where the next element comes from that is handed out, however many were converted ahead; after the
  end, that is the first one of the next epoch.
- An error comes once, after all elements before it; then comes the end.
- Nothing here runs in a thread: `next` converts, and what conversion starts on a device goes on there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from streamrec.example import BytesColumn
from streamrec.example.columns import CompositeTensor, check_column
from streamrec.pipeline.dataset import Dataset, check_dataset
from streamrec.pipeline.engine.description import is_assigned
from streamrec.pipeline.engine.ranks import Rank, reader_here
from streamrec.pipeline.engine.states import check_state, start_of_next_epoch
from streamrec.pipeline.iterators import DatasetIterator
from streamrec.tfrecord import Frames

__all__ = ["Epochs", "Lookahead", "check_assigned", "convert_leaves"]

T = TypeVar("T")


class Lookahead(Generic[T]):
    """The elements of a run, of which some are converted before they are asked for.

    Args:
        run: Where they come from.
        convert: Makes of an element what is handed out.
        ahead: How many may have been converted and not been handed out; 0 for none.
    """

    def __init__(self, run: DatasetIterator[Any], convert: Callable[[Any], T], ahead: int) -> None:
        self._run = run
        self._convert = convert
        self._ahead = ahead
        self._converted: deque[tuple[T, Callable[[], dict[str, Any]]]] = deque()
        self._error: Exception | None = None
        self._left: Callable[[], dict[str, Any]] | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        while self._error is None and self._is_due():
            self._convert_next()
        if self._converted:
            return self._converted.popleft()[0]
        error, self._error = self._error, StopIteration()
        assert error is not None
        if self._left is None:
            here = self._bookmark()
            self._left = (lambda: start_of_next_epoch(here())) if isinstance(error, StopIteration) else here
        try:
            raise error
        finally:
            del error  # no cycle of this frame and the traceback

    def state_dict(self) -> dict[str, Any]:
        """Where the next element comes from that is handed out."""
        return self._bookmark()()

    def close(self) -> None:
        """Ends the run, and forgets what was converted; `state_dict` stays what it was."""
        self._left = self._bookmark()
        self._converted.clear()
        self._error = StopIteration()
        self._run.close()

    def _bookmark(self) -> Callable[[], dict[str, Any]]:
        if self._left is not None:
            return self._left
        return self._converted[0][1] if self._converted else self._run.bookmark()

    def _is_due(self) -> bool:
        return not self._converted or (len(self._converted) <= self._ahead and self._run.ready)

    def _convert_next(self) -> None:
        before = self._run.bookmark()
        try:
            self._converted.append((self._convert(next(self._run)), before))
        except Exception as error:
            self._error = error


class Epochs(Generic[T]):
    """Epoch after epoch of a Dataset through a Lookahead, each an iteration; any of them may begin at a saved state.

    Args:
        dataset: What is read.
        convert: Makes of an element what waits its turn.
        deliver: Makes of that what is handed out, when it is handed out.
        ahead: How many elements may be converted ahead.
        rank: Tells whose share is read, where the dataset does not say; asked when an iteration begins.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        convert: Callable[[Any], Any],
        deliver: Callable[[Any], T],
        ahead: int,
        rank: Callable[[], Rank],
    ) -> None:
        check_dataset("dataset", dataset)
        self._dataset = dataset
        self._convert = convert
        self._deliver = deliver
        self._ahead = ahead
        self._rank = rank
        self._state: Mapping[str, Any] | None = None
        self._current: Lookahead[Any] | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration begins, from 0, or goes on with after `load_state_dict`.

        A loop that counts from it trains no epoch twice, however the state was saved:

            for epoch in range(loader.epoch, 3):
                for batch in loader: ...
        """
        return self._dataset.epoch if self._state is None else int(self._state["epoch"])

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch; without it, the one after the last."""
        self._dataset = self._dataset.with_options(epoch=epoch)

    def __iter__(self) -> Iterator[T]:
        """The next epoch; or the rest of one, once, where `load_state_dict` said.

        It begins when its first element is asked for, since trainers make iterators that they never use. Leaving the
        loop ends the reading. An error of the data comes after all elements before it.

        Raises:
            ValueError: Other ranks iterate too, and the data is not distributed to them.
            PositionMismatchError: The state was saved by another pipeline; from the first element.
        """
        check_assigned(self._with_rank(), self._dataset.options.rank)
        return self._deliver_all()

    def __len__(self) -> int:
        """How many elements an epoch of this rank has, where `len(dataset)` is known; else a TypeError."""
        return len(self._with_rank())

    def __bool__(self) -> bool:
        """True, as a Dataset is."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """Where this rank's next element comes from, as JSON; {} where nothing was iterated.

        After the end of an epoch that is the first element of the next.
        """
        if self._current is not None:
            return self._current.state_dict()
        return dict(self._state or {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where the state was saved; {} for the start.

        Raises:
            PositionMismatchError: It is not a state, or not as it was saved.
        """
        if state:
            check_state(state)
        self._state = dict(state) or None
        self._current = None

    def _with_rank(self) -> Dataset[Any]:
        """The dataset, which knows its rank from now on."""
        if self._dataset.options.rank is None:
            rank = self._rank()
            self._dataset = self._dataset.with_options(rank=rank.rank, world_size=rank.world_size)
        return self._dataset

    def _deliver_all(self) -> Iterator[T]:
        state, self._state = self._state, None
        self._current = elements = Lookahead(self._dataset.iterate(state), self._convert, self._ahead)
        with closing(elements):
            for element in elements:
                yield self._deliver(element)


def check_assigned(dataset: Dataset[Any], rank: Rank | None) -> None:
    """Refuses a dataset that each of several processes would read whole.

    Raises:
        ValueError: There are several, and it holds no `distribute`.
    """
    readers = reader_here(rank).readers
    if readers > 1 and not is_assigned(dataset.chain):
        raise ValueError(
            f"{readers} processes (ranks times loader workers) would each read all of this dataset: call "
            ".distribute() directly after TFRecordDataset, or use one process"
        )


def convert_leaves(element: Any, leaf: Callable[[npt.NDArray[Any], str], Any], name: str = "") -> Any:
    """An element with `leaf(array, name)` for each array or number, and lists for strings and for images.

    A name is the keys that lead to the array, and the field of a `SparseTensor` or `RaggedTensor`, joined by dots.
    """
    if isinstance(element, Mapping):
        return {key: convert_leaves(value, leaf, join_name(name, key)) for key, value in element.items()}
    if isinstance(element, CompositeTensor):
        check_column(element, name or None)
        names = iter(element.__match_args__)
        return element.map_parts(lambda part: convert_leaves(part, leaf, join_name(name, next(names))))
    if isinstance(element, tuple):
        fields = getattr(element, "_fields", range(len(element)))
        parts = [
            convert_leaves(part, leaf, join_name(name, field)) for field, part in zip(fields, element, strict=True)
        ]
        return type(element)(*parts) if hasattr(element, "_fields") else tuple(parts)
    if isinstance(element, Frames):
        return list(element)
    if isinstance(element, BytesColumn):
        return element.to_numpy().tolist()
    if isinstance(element, np.ndarray | np.generic):
        array = np.asarray(element)
        if array.ndim and array.dtype.hasobject and array.size and isinstance(array.flat[0], np.ndarray):
            return [convert_leaves(each, leaf, name) for each in array]  # images of a column
        return array.tolist() if array.dtype.kind in "OSU" else leaf(array, name)
    return element


def join_name(name: str, key: object) -> str:
    """The name of what a key leads to."""
    return f"{name}.{key}" if name else str(key)
