"""The methods of a Dataset that run it, and properties known before a run.

The verbs are in `dataset.py`.

The runs of one Dataset object share its count of epochs (`Epochs`). The count is not part of the
object's value: equality, hash and `repr` ignore it, and a pickled copy begins with the first epoch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from secrets import randbits
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from streamrec import bridge, pipeline
from streamrec.arguments import check_flag, check_function, refuse_with
from streamrec.display import display_text, shorten
from streamrec.errors import LoopThreadError
from streamrec.pipeline.engine.description import Chain, Options, shared_seed
from streamrec.pipeline.engine.seeds import SEED_BITS, derive_seed
from streamrec.pipeline.engine.stage import INFINITE_CARDINALITY
from streamrec.pipeline.engine.stage_names import draw_dataset
from streamrec.pipeline.engine.states import check_state
from streamrec.pipeline.iterators import (
    AsyncDatasetIterator,
    DatasetIterator,
    NumpyIterator,
    Run,
    in_this_loop,
)
from streamrec.pipeline.lengths import absent_if_unknown
from streamrec.shards import ShardInfo
from streamrec.storage import Overwrite, RetryPolicy, Storages, check_source
from streamrec.tfrecord import TFRecordOptions
from streamrec.tracebacks import border_methods

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from streamrec.pipeline.sink import WriteProgress

COUNTERPARTS: Final = {
    "collect": "list(dataset)",
    "dense_to_ragged_batch": "dataset.ragged_batch(...)",
    "load_state_dict": "dataset.iterate(state)",
    "make_initializable_iterator": "iter(dataset)",
    "make_one_shot_iterator": "iter(dataset)",
    "map_and_batch": "dataset.map(...).batch(...)",
    "numpy": "dataset.as_numpy_iterator()",
    "parallel_interleave": "dataset.interleave(..., cycle_length)",
    "shuffle_and_repeat": "dataset.shuffle(...).repeat(...)",
    "state_dict": "run = dataset.iterate(), and run.state_dict()",
    "to_list": "list(dataset)",
}
"""Replacements for methods of tf.data, its iterators and loaders that a Dataset does not have."""

S = TypeVar("S")
T = TypeVar("T", covariant=True)


class Epochs:
    """Counts the iterations of one Dataset.

    Each iteration is the next epoch, in the order in which they begin. `seed` is for sources and
    stages without their own. Runs may be concurrent, in several threads and on several event loops.
    """

    def __init__(self) -> None:
        self.seed = randbits(SEED_BITS)
        self._begun = 0
        self._lock = threading.Lock()

    def begin(self, first: int) -> int:
        """Begins an iteration and returns its epoch; counting begins at `first`."""
        with self._lock:
            self._begun += 1
            return first + self._begun - 1

    def next(self, first: int) -> int:
        """The epoch of the next iteration; counting begins at `first`."""
        return first + self._begun

    def resume(self, first: int, epoch: int, seed: int) -> None:
        """Resumes an iteration of this epoch and seed.

        The next iteration has the next epoch and the same seed.
        """
        with self._lock:
            self._begun = epoch + 1 - first
            self.seed = seed

    def __reduce__(self) -> tuple[Callable[[], Epochs], tuple[()]]:
        return Epochs, ()


@border_methods
@dataclass(frozen=True, slots=True)
class Runnable(Generic[T]):
    """A description that can be run: each iteration is a run of its own, and the next epoch.

    Args:
        chain: The source and the stages; made by `TFRecordDataset` and the methods of `Dataset`.
        options: The options of the whole pipeline; made by `with_options`.
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
        """A run for a `for` loop, from the start or from a saved `state_dict()`.

        Args:
            state: Where to resume.
            progress: Whether to show progress: in a terminal (with the extra `cli`),
                in a notebook, or as a line on standard error from time to time.
            trace: A file to write for the Perfetto trace viewer (ui.perfetto.dev): a timeline of
                all stages.

        Raises:
            PositionMismatchError: The state was saved by another pipeline.
            MissingExtraError: Progress in a terminal needs the package rich, which is not
                installed.
            OSError: The trace cannot be written, or its file exists and is not a trace.
        """
        return DatasetIterator(self._begun(state, trace, progress))

    def aiterate(
        self,
        state: Mapping[str, Any] | None = None,
        *,
        progress: bool = False,
        trace: str | os.PathLike[str] | None = None,
    ) -> AsyncDatasetIterator[T]:
        """A run for an `async for` loop, with the arguments of `iterate`.

        Call it in a running event loop.
        """
        return in_this_loop(self._begun(state, trace, progress))

    async def write(
        self,
        pattern: str | os.PathLike[str],
        options: TFRecordOptions | str | None = None,
        *,
        num_shards: int | None = None,
        max_shard_bytes: int | None = None,
        max_shard_records: int | None = None,
        batched: bool | None = None,
        overwrite: Overwrite = True,
        manifest: str | os.PathLike[str] | None = None,
        progress: bool | Callable[[WriteProgress], object] = False,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: AbstractFileSystem | None = None,
        retry: RetryPolicy | None = None,
    ) -> tuple[ShardInfo, ...]:
        """Writes all elements into shards, on any store.

        It takes the place of `tf.data.experimental.TFRecordWriter(path).write(dataset)`.

        An element is a record (`bytes`), a batch of records, or a dict of features, which becomes
        an Example as in `encode_example`. Each shard appears completely or not at all, and is
        compared with the bytes sent, as in `ShardWriter`; the manifest is written last. If writing
        fails or is cancelled, finished shards stay and no manifest is written; if shards were being
        replaced, the old ones stay. It runs on asyncio, and counts as one iteration of the dataset.

        Args:
            pattern: The shards' URL; `{shard}` or `{shard:05d}` is replaced by the shard's number,
                from 0, and `{shards}` by `num_shards`. Without `{shard}` there is one shard.
            options: `TFRecordOptions`, or a compression type: "", "GZIP", "ZLIB", "ZSTD".
            num_shards: Record i goes into shard i modulo `num_shards`; all shards are written, and
                compressed, at the same time, and appear at the end.
                `TFRecordDataset(shards, num_parallel_reads=num_shards)` reads the records in the
                same order.
            max_shard_bytes: Writes shards one after the other, each below this many bytes, as in
                `ShardWriter`. By default 200 MB if the pattern has `{shard}`.
            max_shard_records: The largest number of records in a shard, likewise.
            batched: False: each dict is one Example. True: each dict is a batch of Examples in
                columns, as for `encode_examples`. None: a dict of scalars is one Example, and
                another dict is an error.
            overwrite: Whether objects of these names are replaced, once all shards are complete.
            manifest: The URL of a manifest to write, for `verify` and `distribute`; None for no
                manifest.
            progress: True to show progress as `iterate` does; or a function that gets a
                `WriteProgress` from time to time.
            storage_options: Passed to the fsspec filesystem of the shards.
            filesystem: Your own fsspec filesystem for the shards, instead of one made from
                `storage_options`.
            retry: What happens when the network fails; see RetryPolicy.

        Returns:
            The shards, in order: path, records, bytes, CRC32C.

        Raises:
            ValueError: The dataset is endless; the pattern of several shards has no `{shard}`;
                memory does not hold this many shards at once; or `{shards}` is used without
                `num_shards`.
            TypeError: An element is neither a record nor a dict of features; the message has its
                number.
            FeatureError: A value cannot be written as a feature.
            StorageError: The store failed, and retrying did not help.

        Examples:
            >>> from streamrec import Dataset
            >>> numbers = Dataset.from_tensor_slices({"x": [1, 2, 3]})
            >>> squares = numbers.map(lambda row: {**row, "square": row["x"] ** 2})
            >>> shards = squares.write_sync("memory://doc/squares-{shard}", num_shards=2)
            >>> [shard.records for shard in shards]
            [2, 1]
        """
        chain = self._ending("write")
        # All arguments are checked before the run begins, so that a mistake does not cost an epoch.
        target = pipeline.sink.target_of(
            pattern,
            options,
            num_shards=num_shards,
            max_shard_bytes=max_shard_bytes,
            max_shard_records=max_shard_records,
            overwrite=overwrite,
            manifest=manifest,
            filesystem=filesystem,
        )
        retry = check_source(storage_options, filesystem, retry)
        callback = None if isinstance(progress, bool) else check_function("progress", progress)
        encoder = pipeline.sink.Encoder(
            batched if batched is None else check_flag("batched", batched)
        )
        storages = Storages(storage_options, filesystem=filesystem, retry=retry)
        run = self._begun(None, None, progress is True, chain)
        return await pipeline.sink.write_shards(run, target, storages, encoder, callback)

    write_sync = bridge.synchronous(write)

    def as_numpy_iterator(self, state: Mapping[str, Any] | None = None) -> NumpyIterator:
        """A run for a `for` loop whose elements are NumPy's.

        A batch of records is an array of `bytes` objects.

        Most elements are NumPy's anyway; `Frames` and `BytesColumn` become arrays of objects, and
        Python's numbers NumPy's. The iterator has `state_dict()` and `close()`; its states are
        those of `iterate`.

        Examples:
            >>> from streamrec import Dataset
            >>> list(Dataset.range(4).batch(3).as_numpy_iterator())
            [array([0, 1, 2]), array([3])]
        """
        return NumpyIterator(self._begun(state, None, False))

    def reduce(self, initial_state: S, reduce_func: Callable[[S, Any], S]) -> S:
        """Reduces all elements to a state: `reduce_func(state, element)` returns the next state.

        An element that is a tuple is one argument, as in tf.data.

        Raises:
            ValueError: The dataset is endless.

        Examples:
            >>> from streamrec import Dataset
            >>> int(Dataset.range(5).reduce(0, lambda total, number: total + number))
            10
        """
        check_function("reduce_func", reduce_func)
        chain = self._ending("reduce")
        state = initial_state
        iterator: DatasetIterator[T] = DatasetIterator(self._begun(None, None, False, chain))
        with iterator as elements:
            for element in elements:
                state = reduce_func(state, element)
        return state

    def get_single_element(self) -> T:
        """The only element of a dataset.

        Raises:
            ValueError: The dataset is empty or has more elements.

        Examples:
            >>> from streamrec import Dataset
            >>> Dataset.range(10).batch(10).get_single_element().sum()
            np.int64(45)
        """
        with self.iterate() as elements:
            first = [element for element, _ in zip(elements, range(2), strict=False)]
        if len(first) != 1:
            count = "none" if not first else "more than one"
            raise ValueError(
                f"get_single_element needs a dataset of one element, but {shorten(repr(self))} has "
                f"{count}"
            )
        return first[0]

    def cardinality(self) -> int:
        """The number of elements, if the description says it.

        It does for ranges, slices, and Datasets made from them.

        For shards, `distribute(even=..., manifest=...)` and `global_shuffle` know the number for
        this rank, as does `distribute(manifest=...)` with a single rank; the first call blocks
        while it reads the manifest or index.

        `streamrec.pipeline.INFINITE_CARDINALITY` (-1) for an endless dataset;
        `streamrec.pipeline.UNKNOWN_CARDINALITY` (-2) if the number depends on the data: records of
        other shards, generators, results of `filter` or `flat_map`.

        Examples:
            >>> from streamrec import Dataset
            >>> Dataset.range(10).batch(3).cardinality(), Dataset.range(3).repeat().cardinality()
            (4, -1)
        """
        return self.chain.cardinality(self.options.rank)

    @absent_if_unknown
    def __len__(self) -> int:
        """`cardinality()` if it is known.

        Otherwise raises a TypeError, after which `list(dataset)` works without a length.
        """
        try:
            count = self.cardinality()
        except LoopThreadError as error:
            raise TypeError(
                "this dataset has no len() here: its manifest or index must be read, but this is "
                "the thread that reads: call len() before the run begins"
            ) from error
        if count < 0:
            why = (
                "it has no end"
                if count == INFINITE_CARDINALITY
                else "how many elements it has depends on its data"
            )
            raise TypeError(
                f"this dataset has no len(): {why}. A torch DataLoader needs "
                "streamrec.torch.IterableDataset(dataset)"
            )
        return count

    def __length_hint__(self) -> Any:
        """The hint for `list(dataset)`: NotImplemented, or a ValueError for an endless dataset."""
        self._ending("list")
        return NotImplemented

    def __bool__(self) -> bool:
        """True even without elements, as in tf.data."""
        return True

    if not TYPE_CHECKING:  # so that type checkers find missing attributes
        __getitem__ = refuse_with(
            "elements of a Dataset have no numbers: list(dataset.skip(n).take(1)) gives element "
            "n, and a RecordSource any record of indexed shards"
        )
        __next__ = refuse_with(
            "a Dataset is not an iterator, but makes one for each epoch: write "
            "`elements = iter(dataset)` once, then `next(elements)`"
        )
        __enter__ = __exit__ = refuse_with(
            "write `with dataset.iterate() as run`, or `for element in dataset`"
        )

        def __getattr__(self, name: str) -> NoReturn:
            advice = f": write {COUNTERPARTS[name]}" if name in COUNTERPARTS else ""
            raise AttributeError(
                f"a Dataset has no attribute {name!r}{advice}", name=name, obj=self
            )

    @property
    def element_spec(self) -> Any:
        """The spec of an element, if the description says it.

        It is a `TensorSpec`, or dicts and tuples of specs.

        None if it is unknown: after `map`, and for a generator without `output_signature`.

        Examples:
            >>> from streamrec import Dataset
            >>> Dataset.range(10).batch(3).element_spec
            TensorSpec(shape=(None,), dtype=dtype('int64'))
        """
        return self.chain.element_spec()

    def fingerprint(self) -> int:
        """A number from 0 to 2**64 - 1 that identifies the pipeline.

        Pipelines refuse the states of others.

        Functions and files count by their names.
        """
        return derive_seed(*self.chain.lines())

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration, from 0.

        After `iterate(state)`, the one after the state's.

        Examples:
            >>> from streamrec import Dataset
            >>> numbers = Dataset.range(3)
            >>> for epoch in range(numbers.epoch, 2):
            ...     print(epoch, [int(number) for number in numbers])
            0 [0, 1, 2]
            1 [0, 1, 2]
            >>> numbers.epoch
            2
        """
        return self._epochs.next(self.options.epoch)

    def __iter__(self) -> Iterator[T]:
        return DatasetIterator(self._begun(None, None, False))

    def __aiter__(self) -> AsyncIterator[T]:
        return self.aiterate()

    def __repr__(self) -> str:
        return display_text(f"<Dataset: {' > '.join(self.chain.lines())}>")

    def _repr_html_(self) -> str:
        """A drawing of the source and the stages, for notebooks."""
        return draw_dataset(self.chain)

    def _begun(
        self,
        state: Mapping[str, Any] | None,
        trace: str | os.PathLike[str] | None,
        progress: bool,
        chain: Chain | None = None,
    ) -> Run:
        """A run of the next epoch, or of a state's epoch; `chain` replaces this dataset's chain."""
        first = self.options.epoch
        if state is None:
            options = replace(self.options, epoch=self._epochs.begin(first))
            seed = shared_seed(self.chain)
            seed = self._epochs.seed if seed is None else seed
            return Run(
                chain or self.chain, options, None, trace=trace, progress=progress, seed=seed
            )
        check_state(state)
        epoch = int(state["epoch"])
        options = replace(self.options, epoch=epoch)
        run = Run(self.chain, options, state, trace=trace, progress=progress)
        self._epochs.resume(first, epoch, run.position["seed"])
        return run

    def _ending(self, verb: str) -> Chain:
        """The chain for a verb that must end."""
        if self.chain.is_endless:
            raise ValueError(
                f"{verb} would never end: {shorten(repr(self))} has no end; put take(count) before "
                "it"
            )
        return self.chain.refuse_endless(verb)
