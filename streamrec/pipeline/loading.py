"""The common code of the loaders of PyTorch and JAX.

Rules:
- An element is converted ahead only if it has already arrived, so a ready element never waits for a
  later one.
- The state is that of the next element that the loader gives, however many were converted ahead;
  after the end, that of the first element of the next epoch.
- An error is raised once, after all elements before it; then the iteration ends.
- Nothing runs in a thread: `next` converts. A conversion may continue on a device.
- An iterator that is dropped ends its run, by `weakref.finalize`. A `finally` in a generator would
  do the same until the interpreter exits. Then Python closes generators after modules have lost
  their names, and each prints a traceback. At exit the loop thread ends all runs.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from streamrec.display import warn_once
from streamrec.errors import LoopThreadError
from streamrec.example import BytesColumn
from streamrec.example.columns import CompositeTensor, check_column
from streamrec.pipeline.dataset import Dataset, check_dataset
from streamrec.pipeline.dividing import check_assigned
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.states import check_state, start_of_next_epoch
from streamrec.pipeline.iterators import DatasetIterator
from streamrec.pipeline.lengths import absent_if_unknown
from streamrec.pipeline.telemetry.stats import Stats
from streamrec.pipeline.watching import NOTHING_SHOWN, Watch, nothing_yet
from streamrec.tfrecord import Frames
from streamrec.tracebacks import shorten_traceback

T = TypeVar("T")


class Lookahead(Generic[T]):
    """Converts up to `ahead` elements of a run before they are asked for.

    `count` returns the samples and tokens of an element, which the run's statistics show once the
    element is given.
    """

    def __init__(
        self,
        run: DatasetIterator[Any],
        convert: Callable[[Any], T],
        ahead: int,
        count: Callable[[Any], tuple[int, int]] = lambda element: (1, 0),
    ) -> None:
        self._run = run
        self._convert = convert
        self._ahead = ahead
        self._count = count
        self._converted: deque[tuple[T, Callable[[], dict[str, Any]], tuple[int, int]]] = deque()
        self._error: Exception | None = None
        self._final_bookmark: Callable[[], dict[str, Any]] | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        while self._error is None and self._is_due():
            before = self._run.bookmark()
            try:
                element = next(self._run)
                # Before it is converted: to add up a column on a device would wait for the device.
                counts = self._count(element)
                self._converted.append((self._convert(element), before, counts))
            except Exception as failure:
                self._error = failure
        if self._converted:
            converted, _, counts = self._converted.popleft()
            self._run.count(*counts)
            return converted
        error = self._error
        self._error = StopIteration()
        assert error is not None
        if self._final_bookmark is None:
            here = self.bookmark()
            if isinstance(error, StopIteration):
                self._final_bookmark = lambda: start_of_next_epoch(here())
            else:
                self._final_bookmark = here
        try:
            raise error
        finally:
            del error  # no cycle of this frame and the traceback

    def state_dict(self) -> dict[str, Any]:
        """The state before the next element."""
        return self.bookmark()()

    def stats(self) -> Stats:
        """The run's statistics."""
        return self._run.stats()

    def close(self) -> None:
        """Ends the run, and drops converted elements; `state_dict` does not change."""
        self._final_bookmark = self.bookmark()
        self._converted.clear()
        self._error = StopIteration()
        self._run.close()

    def bookmark(self) -> Callable[[], dict[str, Any]]:
        """A function that returns the state before the next element of now when it is called."""
        if self._final_bookmark is not None:
            return self._final_bookmark
        return self._converted[0][1] if self._converted else self._run.bookmark()

    def _is_due(self) -> bool:
        return not self._converted or (len(self._converted) <= self._ahead and self._run.ready)


class Elements(Protocol):
    """Elements of a run, which `close` ends."""

    def __next__(self) -> Any: ...

    def stats(self) -> Stats: ...

    def close(self) -> None: ...


class LoaderIterator(Generic[T]):
    """One iteration of a loader. Closing or dropping it ends the reading; so does an error.

    `begin` starts the reading, when the first element is asked for, and returns the elements;
    `deliver` converts each when it is given. `nothing_yet` returns the statistics before.
    """

    def __init__(
        self,
        begin: Callable[[], Elements],
        deliver: Callable[[Any], T],
        nothing_yet: Callable[[], Stats],
    ) -> None:
        self._begin = begin
        self._deliver = deliver
        self._elements: Elements | None = None
        self._is_over = False
        self._nothing_yet = nothing_yet

    def start(self) -> Self:
        """Starts the reading."""
        self._elements = elements = self._begin()
        weakref.finalize(self, close_dropped, elements).atexit = False
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._is_over:
            raise StopIteration
        if self._elements is None:
            self.start()
        assert self._elements is not None
        try:
            return self._deliver(next(self._elements))
        except BaseException as error:
            self.close()
            shorten_traceback(error)
            raise

    def stats(self) -> Stats:
        """The statistics of this iteration: stages, waits, bottleneck, stores, samples and tokens;
        at any time, from any thread.
        """
        return self._nothing_yet() if self._elements is None else self._elements.stats()

    def close(self) -> None:
        """Ends the reading: when this returns, no task or connection of it is left. Closing twice
        is allowed.
        """
        self._is_over = True
        if self._elements is not None:
            self._elements.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def close_dropped(elements: Elements) -> None:
    """Closes the elements of an iterator that was dropped, possibly by a garbage collection on the
    loop's thread, which must not wait: there the run ends when it is dropped, too.
    """
    with suppress(LoopThreadError):
        elements.close()


class Epochs(Generic[T]):
    """Iterates over epochs of a Dataset through a Lookahead.

    An iteration may begin at a saved state.

    `convert` converts an element, possibly ahead, and `deliver` the result when it is given. `rank`
    is called when an iteration begins, for a dataset without one. `watch` says what is shown.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        convert: Callable[[Any], Any],
        deliver: Callable[[Any], T],
        ahead: int,
        rank: Callable[[], Rank],
        *,
        watch: Watch = NOTHING_SHOWN,
    ) -> None:
        check_dataset("dataset", dataset)
        self._watch = watch
        self._dataset = dataset
        self._has_own_rank = dataset.options.rank is not None
        self._convert = convert
        self._deliver = deliver
        self._ahead = ahead
        self._rank = rank
        self._state: Mapping[str, Any] | None = None
        self._current: Lookahead[Any] | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration, from 0.

        After `load_state_dict` the epoch that it continues.

        A loop from this number on trains no epoch twice, whenever the state was saved:

            for epoch in range(loader.epoch, 3):
                for batch in loader: ...
        """
        return self._dataset.epoch if self._state is None else int(self._state["epoch"])

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration this epoch; otherwise it is the one after the last."""
        self._dataset = self._dataset.with_options(epoch=epoch)

    def __iter__(self) -> LoaderIterator[T]:
        """Iterates over the next epoch, or once over the rest of one after `load_state_dict`.

        Reading begins when the first element is asked for, since trainers make iterators that they
        never use. Leaving the loop ends the reading. An error in the data is raised after all
        elements before it.

        Raises:
            ValueError: Several ranks iterate, but the data is not distributed among them.
            PositionMismatchError: The state was saved by another pipeline; raised with the first
                element.
        """
        check_assigned(self._with_rank(), self._dataset.options.rank)
        nothing = partial(nothing_yet, self._dataset)
        return LoaderIterator(self._begin_epoch, self._deliver, nothing)

    @absent_if_unknown
    def __len__(self) -> int:
        """How many elements an epoch of this rank has; a TypeError if `len(dataset)` is unknown."""
        return len(self._with_rank())

    def __bool__(self) -> bool:
        """True, as a Dataset is."""
        return True

    def stats(self) -> Stats:
        """The statistics of the current iteration, or of the last one: stages, waits, bottleneck,
        stores, and samples and tokens per second; at any time, from any thread.

        Its last line when it is printed says whether the training step or a part of the pipeline
        is the bottleneck.
        """
        return nothing_yet(self._dataset) if self._current is None else self._current.stats()

    def state_dict(self) -> dict[str, Any]:
        """The state before this rank's next element, as JSON; {} before the first iteration.

        After the end of an epoch, it is the state before the first element of the next epoch.
        """
        return self.bookmark()()

    def bookmark(self) -> Callable[[], dict[str, Any]]:
        """A function that returns the `state_dict()` of now when it is called.

        Making it costs almost nothing.
        """
        if self._current is not None:
            return self._current.bookmark()
        return partial(dict, self._state or {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue where the state was saved; {} for the start.

        Raises:
            PositionMismatchError: The value is not a state, or was changed.
        """
        if state:
            check_state(state)
        self._state = dict(state) or None
        self._current = None

    def _with_rank(self) -> Dataset[Any]:
        """The dataset, with a rank from now on; but one of a single process may still change.

        Schedules ask for the length before the process group exists. If that answer stayed, each
        rank would read all of the data.
        """
        earlier = self._dataset.options.rank
        if self._has_own_rank or (earlier is not None and earlier.world_size > 1):
            return self._dataset
        rank = self._rank()
        if rank != earlier:
            self._dataset = self._dataset.with_options(
                epoch=self._dataset.epoch, rank=rank.rank, world_size=rank.world_size
            )
        if earlier is not None and rank.world_size > 1:
            warn_once(
                "a Loader was asked for its length, or iterated, before the process group was set "
                f"up, and answered as the only process; it is rank {rank.rank} of "
                f"{rank.world_size} now: call init_process_group, or what does, before len(loader)"
            )
        return self._dataset

    def _begin_epoch(self) -> Lookahead[Any]:
        state = self._state
        self._state = None
        run = self._watch.iterate(self._dataset, state)
        count = self._watch.counter(self._dataset)
        self._current = elements = Lookahead(run, self._convert, self._ahead, count)
        return elements


def convert_leaves(
    element: Any, leaf: Callable[[npt.NDArray[Any], str], Any], name: str = ""
) -> Any:
    """Converts an element for a device.

    It calls `leaf(array, name)` for each array or number, and gives lists for strings and images.

    A name has the keys that lead to the array, and the field of a `SparseTensor` or `RaggedTensor`,
    joined by dots.
    """
    if isinstance(element, Mapping):
        return {
            key: convert_leaves(value, leaf, join_name(name, key)) for key, value in element.items()
        }
    if isinstance(element, CompositeTensor):
        # A device's library trusts offsets, and a user's function may have made these.
        check_column(element, name or None)
        names = iter(element.__match_args__)
        return element.map_parts(
            lambda part: convert_leaves(part, leaf, join_name(name, next(names)))
        )
    if isinstance(element, tuple):
        fields = getattr(element, "_fields", range(len(element)))
        parts = [
            convert_leaves(part, leaf, join_name(name, field))
            for field, part in zip(fields, element, strict=True)
        ]
        return type(element)(*parts) if hasattr(element, "_fields") else tuple(parts)
    if isinstance(element, Frames):
        return list(element)
    if isinstance(element, BytesColumn):
        return element.to_numpy().tolist()
    if isinstance(element, np.ndarray | np.generic):
        array = np.asarray(element)
        holds_objects = array.ndim and array.dtype.hasobject and array.size
        if holds_objects and isinstance(array.flat[0], np.ndarray):
            return [convert_leaves(each, leaf, name) for each in array]  # images of a column
        return array.tolist() if array.dtype.kind in "OSU" else leaf(array, name)
    return element


def join_name(name: str, key: object) -> str:
    """The name of a part: the name of the whole and the part's key, joined by a dot."""
    return f"{name}.{key}" if name else str(key)
