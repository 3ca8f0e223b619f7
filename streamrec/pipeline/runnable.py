"""Runs: what a Dataset does when it is iterated, and what is known of it before; the verbs stand in `dataset.py`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

from streamrec.arguments import function
from streamrec.pipeline.cardinality import INFINITE_CARDINALITY, cardinality_of
from streamrec.pipeline.element_spec import element_spec_of
from streamrec.pipeline.engine.description import Chain, derived
from streamrec.pipeline.engine.epochs import Epochs
from streamrec.pipeline.engine.iteration import Run, check_state, shared_seed
from streamrec.pipeline.iterators import (
    AsyncDatasetIterator,
    DatasetIterator,
    NumpyIterator,
    ThreadedAsyncIterator,
    in_this_loop,
)
from streamrec.pipeline.options import Options

__all__ = ["Runnable"]

S = TypeVar("S")
T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Runnable(Generic[T]):
    """A description that can be run: each iteration is a run of its own, and the next epoch.

    Args:
        chain: The source and the stages; made by `TFRecordDataset` and the methods of `Dataset`.
        options: What the whole pipeline is told; made by `with_options`.
    """

    chain: Chain
    options: Options = Options()
    _epochs: Epochs = field(default_factory=Epochs, init=False, compare=False, repr=False)

    def iterate(
        self,
        state: Mapping[str, Any] | None = None,
        *,
        progress: bool = False,
        trace: str | os.PathLike[str] | None = None,
    ) -> DatasetIterator[T]:
        """A run for a `for` loop, from the start or from where a saved `state_dict()` stood.

        Args:
            state: Where to go on.
            progress: Whether how it goes is shown: in a terminal (with `pip install 'streamrec[cli]'`), in a notebook,
                or as a line on standard error from time to time.
            trace: A file to write for the Perfetto trace viewer (ui.perfetto.dev): what each stage did when.

        Raises:
            PositionMismatchError: The state was saved by another pipeline.
            MissingExtraError: Progress is to be shown in a terminal, and the package rich is not installed.
            OSError: The trace cannot be written.
        """
        return DatasetIterator(self._begun(state, trace, progress))

    def aiterate(
        self,
        state: Mapping[str, Any] | None = None,
        *,
        progress: bool = False,
        trace: str | os.PathLike[str] | None = None,
    ) -> AsyncDatasetIterator[T] | ThreadedAsyncIterator[T]:
        """A run for an `async for` loop, likewise; call it where a loop is running."""
        return in_this_loop(self._begun(state, trace, progress))

    def as_numpy_iterator(self, state: Mapping[str, Any] | None = None) -> NumpyIterator:
        """A run for a `for` loop whose elements are NumPy's: records of a batch as an array of `bytes` objects.

        Elements of streamrec are NumPy's already, save for `Frames` and `BytesColumn`, which become arrays of objects,
        and Python's own numbers. It has `state_dict()` and `close()`; its states are those of `iterate`.

        Examples:
            >>> from streamrec import Dataset
            >>> list(Dataset.range(4).batch(3).as_numpy_iterator())
            [array([0, 1, 2]), array([3])]
        """
        return NumpyIterator(self.iterate(state))

    def reduce(self, initial_state: S, reduce_func: Callable[[S, Any], S]) -> S:
        """What is left of all elements: `reduce_func(state, element)` gives the next state.

        An element that is a tuple is one argument, as in tf.data.

        Raises:
            ValueError: The dataset has no end.

        Examples:
            >>> from streamrec import Dataset
            >>> int(Dataset.range(5).reduce(0, lambda total, number: total + number))
            10
        """
        function("reduce_func", reduce_func)
        if self.cardinality() == INFINITE_CARDINALITY:
            raise ValueError(f"reduce would never end: {self!r} has no end; put take(count) before it")
        state = initial_state
        with self.iterate() as elements:
            for element in elements:
                state = reduce_func(state, element)
        return state

    def get_single_element(self) -> T:
        """The only element of a dataset that has one.

        Raises:
            ValueError: It has none, or more.

        Examples:
            >>> from streamrec import Dataset
            >>> Dataset.range(10).batch(10).get_single_element().sum()
            np.int64(45)
        """
        with self.iterate() as elements:
            found = [element for element, _ in zip(elements, range(2), strict=False)]
        if len(found) != 1:
            count = "none" if not found else "more than one"
            raise ValueError(f"get_single_element wants a dataset of one element, and {self!r} has {count}")
        return found[0]

    def cardinality(self) -> int:
        """How many elements there are, where the description says it: of ranges, slices, and what is made of them.

        `streamrec.INFINITE_CARDINALITY` (-1) where there is no end, `streamrec.UNKNOWN_CARDINALITY` (-2) where only the
        data says it: records of shards, generators, and what `filter` or `flat_map` let through.

        Examples:
            >>> from streamrec import Dataset
            >>> Dataset.range(10).batch(3).cardinality(), Dataset.range(3).repeat().cardinality()
            (4, -1)
        """
        return cardinality_of(self.chain)

    def __len__(self) -> int:
        count = self.cardinality()
        if count < 0:
            why = "it has no end" if count == INFINITE_CARDINALITY else "how many elements it has depends on its data"
            raise TypeError(
                f"{self!r} has no len(): {why}. A torch DataLoader wants streamrec.torch.IterableDataset(dataset)"
            )
        return count

    def __bool__(self) -> bool:
        """True, whether it has elements or not, as in tf.data."""
        return True

    @property
    def element_spec(self) -> Any:
        """What an element looks like, where the description says it: a `TensorSpec`, or dicts and tuples of them.

        None where it does not: behind `map`, and of a generator without `output_signature`.

        Examples:
            >>> from streamrec import Dataset
            >>> Dataset.range(10).batch(3).element_spec
            TensorSpec(shape=(None,), dtype=dtype('int64'))
        """
        return element_spec_of(self.chain)

    def fingerprint(self) -> int:
        """A number, from 0 to 2**64 - 1, that differs where pipelines do: a state of one is no state of the other.

        Functions count by their names, files by theirs.
        """
        return derived(*self.chain.lines())

    def __iter__(self) -> Iterator[T]:
        return self.iterate()

    def __aiter__(self) -> AsyncIterator[T]:
        return self.aiterate()

    def __repr__(self) -> str:
        return f"<Dataset: {' > '.join(self.chain.lines())}>"

    def _begun(self, state: Mapping[str, Any] | None, trace: str | os.PathLike[str] | None, progress: bool) -> Run:
        """A run of the next epoch, or of the one that a state is of."""
        first = self.options.epoch
        if state is None:
            options = replace(self.options, epoch=self._epochs.begin(first))
            seed = shared_seed(self.chain)
            return Run(self.chain, options, None, trace, progress, self._epochs.seed if seed is None else seed)
        check_state(state)
        epoch = int(state["epoch"])
        run = Run(self.chain, replace(self.options, epoch=epoch), state, trace, progress)
        self._epochs.resume(first, epoch, run.position["seed"])
        return run

    def _told(self, options: Options) -> Self:
        """The same, told something else: where no seed was given, chance comes from the same one."""
        told = replace(self, options=options)
        told._epochs.seed = self._epochs.seed
        return told
