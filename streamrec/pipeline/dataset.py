"""Dataset: a frozen description of a pipeline, with tf.data's verbs.

Iterating runs it (`runnable.py`).

Each verb is a docstring and one description, which is defined, and checks its arguments, where it
is imported from. Sources come first, then verbs that join several datasets, then verbs that change
one.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Signature
from typing import TYPE_CHECKING, Any, Final, Literal, Never, TypeAlias, TypeVar, cast, overload

import numpy as np

from streamrec import pipeline
from streamrec.arguments import (
    check_flag,
    check_function,
    check_integer,
    check_path,
    describe_value,
)
from streamrec.pipeline import sources, stages
from streamrec.pipeline.elements.columns import leaves, map_nest
from streamrec.pipeline.elements.positions import OriginsOf
from streamrec.pipeline.elements.specs import signature_of
from streamrec.pipeline.engine.description import AUTOTUNE, Chain, Options, Source
from streamrec.pipeline.engine.ranks import rank_of
from streamrec.pipeline.engine.session import SourceStores
from streamrec.pipeline.engine.stage import UNKNOWN_CARDINALITY, Stage
from streamrec.pipeline.iterators import DatasetIterator
from streamrec.pipeline.runnable import Runnable
from streamrec.pipeline.sources.global_shuffle import BLOCK_BYTES, Quality
from streamrec.pipeline.sources.interleave import Plan
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.pipeline.stages.calling import Map, is_async
from streamrec.shards import Filenames
from streamrec.storage import RetryPolicy, check_source
from streamrec.tracebacks import border_methods

if TYPE_CHECKING:
    import numpy.typing as npt
    from fsspec import AbstractFileSystem

    from streamrec.example.features import Feature
    from streamrec.tfrecord import Frames


ALL_ELEMENTS: Final = 1 << 62
"""The size of a buffer of all elements, where their number is unknown."""

T = TypeVar("T", covariant=True)
U = TypeVar("U")
V = TypeVar("V")
W = TypeVar("W")

Parsed: TypeAlias = "dict[str, npt.NDArray[Any] | Any]"
"""A parsed batch: an array for each feature. With `string_columns`, and of features that are ragged
or sparse, it is another kind of column, which type checkers leave to the user."""


@border_methods
@dataclass(frozen=True, slots=True, repr=False)
class Dataset(Runnable[T]):
    """A source of elements and the stages that they pass; nothing runs before it is iterated.

    Iterate it with `for` (a background thread of the process fetches while the loop runs) or with
    `async for` (on the caller's event loop). Each iteration is a run of its own, and the next
    epoch: `for epoch in range(3): for batch in dataset: ...` shuffles again each time, by (seed,
    epoch). Elements that `cache()` keeps in memory, listed names and sizes of shards are kept as
    long as the Dataset lives.

    A Dataset is a value: it can be pickled and compared. The number of its iterations is not part
    of the value, and a pickled copy begins with the first epoch.

    Sharing: a Dataset is immutable, so threads, tasks and processes may share it. Each iteration is
    a run of its own. Several threads may take from one iterator of `iterate`, and several tasks
    from one of `aiterate`: each element goes to one of them.

    `TFRecordDataset` makes one, and so do the functions and methods below; it is not called itself.
    """

    # `help` shows this in place of the parameters, which only this package passes.
    __signature__ = Signature()

    @staticmethod
    def range(*args: int, output_type: Any = np.int64) -> Dataset[Any]:
        """The numbers of Python's `range(*args)`, as NumPy scalars of dtype `output_type`.

        Raises:
            ValueError: The step is 0.
            TypeError: Other than one to three arguments.

        Examples:
            >>> [numbers.tolist() for numbers in Dataset.range(2, 9).batch(4)]
            [[2, 3, 4, 5], [6, 7, 8]]
        """
        return Dataset(
            Chain(
                sources.Range.of(
                    tuple(check_integer("range", number) for number in args), output_type
                )
            )
        )

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset[Any]:
        """One element: an array, a list or a number, or dicts and tuples of them. It is copied.

        Examples:
            >>> list(Dataset.from_tensors(([1, 2], "a")))
            [(array([1, 2]), b'a')]
        """
        return Dataset(Chain(sources.Slices.single(tensors)))

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset[Any]:
        """The rows of an array, list, Frames, ragged or sparse tensor.

        Dicts and tuples of several are rows with these parts.

        They are copied, and arrays among the elements are read-only.

        Raises:
            TypeError: A part has no rows, or a value is masked, null or None.
            ValueError: The parts have different numbers of rows.

        Examples:
            >>> list(Dataset.from_tensor_slices({"name": ["a", "b"]}))
            [{'name': b'a'}, {'name': b'b'}]
        """
        return Dataset(Chain(sources.Slices.of(tensors)))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        *,
        output_signature: Any = None,
    ) -> Dataset[Any]:
        """The elements of what `generator(*args)` returns.

        It may return an iterator, an iterable, or an async one.

        A sync generator runs in a thread, ahead of its consumer; an async one on the event loop of
        the pipeline. `generator` is called again for each epoch. A resumed run also calls it, and
        drops the elements before its position. If the result has `state_dict()`, called after each
        element, and `load_state_dict(state)`, called before iterating, the state (JSON) is kept in
        the position instead. Elements are `bytes` (records), arrays, numbers, and dicts and tuples
        of them.

        Args:
            generator: Called with `args`.
            args: Its arguments.
            output_signature: The spec that each element must fit: a `TensorSpec`, or dicts and
                tuples of them, also TensorFlow's. Numbers and lists become arrays of its dtype.
                None accepts any element.

        Raises:
            TypeError: `output_signature` is not a spec. When it runs: an element has another
                structure, or a dtype that cannot be converted without loss; the message has its
                number.
            ValueError: When it runs: an element has another shape.

        Examples:
            >>> from streamrec import TensorSpec
            >>> list(Dataset.from_generator(lambda stop: iter(range(stop)), (3,)))
            [0, 1, 2]
            >>> number = TensorSpec([], "float32")
            >>> list(Dataset.from_generator(lambda: [1, 2], output_signature=number))
            [np.float32(1.0), np.float32(2.0)]
        """
        signature = None if output_signature is None else signature_of(output_signature)
        return Dataset(Chain(sources.Generated(generator, tuple(args or ()), signature)))

    @staticmethod
    def list_files(
        file_pattern: Filenames,
        shuffle: bool | None = None,
        seed: int | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: AbstractFileSystem | None = None,
        retry: RetryPolicy | None = None,
    ) -> Dataset[bytes]:
        """The names that patterns match, as bytes, which `TFRecordDataset` takes.

        A plain name is not looked up.

        Args:
            file_pattern: A glob, braces (`{00000..00127}`), a name, or a list of these. The list's
                order is kept; the names of each glob are sorted.
            shuffle: Whether each epoch has another order; None shuffles if there is a seed.
            seed: The seed of the order; None for another order in each run.
            storage_options, filesystem, retry: As for `TFRecordDataset`.

        Raises:
            NotFoundError: When it runs: no name matches a glob.
        """
        stores = SourceStores(
            storage_options, filesystem, check_source(storage_options, filesystem, retry)
        )
        shuffle = shuffle if shuffle is None else check_flag("shuffle", shuffle)
        return Dataset(
            Chain(
                sources.Names.of(
                    file_pattern, shuffle, check_integer("seed", seed, none=True), stores
                )
            )
        )

    @staticmethod
    def counter(start: int = 0, step: int = 1, dtype: Any = np.int64) -> Dataset[Any]:
        """The endless numbers `start`, `start + step`, ..., as NumPy scalars.

        Examples:
            >>> list(map(int, Dataset.counter(5, 10).take(3)))
            [5, 15, 25]
        """
        return Dataset(Chain(sources.Counter(start, step, np.dtype(dtype).name)))

    @staticmethod
    def random(
        seed: int | None = None, rerandomize_each_iteration: bool | None = None
    ) -> Dataset[Any]:
        """Endless random numbers: int64, uniform from 0 to 2**32 - 1.

        Args:
            seed: The seed of the numbers; None for another seed in each run, which a saved state
                keeps.
            rerandomize_each_iteration: True for other numbers in each epoch; None or False for the
                same, as in tf.data.

        Examples:
            >>> list(Dataset.random(seed=7).take(3)) == list(Dataset.random(seed=7).take(3))
            True
        """
        rerandomize = rerandomize_each_iteration is not None and check_flag(
            "rerandomize_each_iteration", rerandomize_each_iteration
        )
        return Dataset(Chain(sources.Random(seed, rerandomize)))

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: AbstractFileSystem | None = None,
        retry: RetryPolicy | None = None,
    ) -> Dataset[Any]:
        """The elements that `Dataset.save(path)` wrote.

        Args:
            path: A path or URL. TensorFlow's saved datasets have another format.
            storage_options, filesystem, retry: As for `TFRecordDataset`.

        Raises:
            NotFoundError: When it runs: the file does not exist.
            CacheError: When it runs: `save` did not write the file.
        """
        retry = check_source(storage_options, filesystem, retry)
        return Dataset(
            Chain(
                sources.Saved(
                    sources.CacheFile.at(
                        check_path("path", path), storage_options, filesystem, retry, "load()"
                    )
                )
            )
        )

    @overload
    @staticmethod
    def zip(one: Dataset[U], two: Dataset[V], /) -> Dataset[tuple[U, V]]: ...
    @overload
    @staticmethod
    def zip(one: Dataset[U], two: Dataset[V], three: Dataset[W], /) -> Dataset[tuple[U, V, W]]: ...
    @overload
    @staticmethod
    def zip(*args: Any) -> Dataset[Any]: ...
    @staticmethod
    def zip(*args: Any) -> Dataset[Any]:
        """Tuples of the elements of several datasets, up to the end of the shortest.

        With one argument, a nested tuple or dict of datasets, elements have its structure. The
        datasets share the largest of their memory budgets; the result is deterministic unless one
        of them is not.

        Raises:
            ValueError: No dataset was given.

        Examples:
            >>> longer = Dataset.from_tensor_slices([b"a", b"b"])
            >>> shorter = Dataset.from_tensor_slices([b"c"])
            >>> list(Dataset.zip(longer, shorter))
            [(b'a', b'c')]
        """
        nest = args[0] if len(args) == 1 else args
        return _join(leaves(nest), sources.Zip(map_nest(partial(check_dataset, "datasets"), nest)))

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[Dataset[U]],
        weights: Any = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset[U]:
        """Elements of several datasets, each from a dataset drawn at random.

        Args:
            datasets: At least one. Datasets of weight 0 are left out; if all weights are 0, the
                result is empty.
            weights: The relative probability of each dataset, a list or an array; None for equal
                ones.
            seed: The seed of the choices; None for another seed in each run, which a saved state
                keeps.
            stop_on_empty_dataset: True to end when an exhausted dataset is drawn; False to skip
                such a choice.
            rerandomize_each_iteration: True for other choices in each epoch; None or False for the
                same, as in tf.data.

        Raises:
            ValueError: No dataset was given, or `weights` has another length or a negative number.

        Examples:
            >>> one, two = Dataset.range(4), Dataset.range(10, 14)
            >>> sorted(int(number) for number in Dataset.sample_from_datasets([one, two], [3, 1]))
            [0, 1, 2, 3, 10, 11, 12, 13]
        """
        rerandomize = rerandomize_each_iteration is not None and check_flag(
            "rerandomize_each_iteration", rerandomize_each_iteration
        )
        shares = sources.weights_of(weights, len(datasets))
        seed = check_integer("seed", seed, none=True)
        drawn = [dataset for dataset, share in zip(datasets, shares, strict=True) if share]
        if not drawn:
            return _mix(datasets, Chain(sources.Range.of((0,), np.int64)), stop_on_empty_dataset)
        choices = sources.Choices(tuple(filter(None, shares)), seed, rerandomize)
        return _mix(drawn, Chain(choices), stop_on_empty_dataset)

    @staticmethod
    def choose_from_datasets(
        datasets: Sequence[Dataset[U]],
        choice_dataset: Dataset[Any],
        stop_on_empty_dataset: bool = True,
    ) -> Dataset[U]:
        """Elements of several datasets, each from the dataset whose number `choice_dataset` gives.

        Args:
            datasets: At least one.
            choice_dataset: Integers from 0 to the number of datasets, exclusive. The result ends
                with it.
            stop_on_empty_dataset: True to end when an exhausted dataset is chosen; False to skip
                such a choice.

        Raises:
            ValueError: No dataset was given. When it runs: a choice is out of range.
            TypeError: When it runs: a choice is not an integer.

        Examples:
            >>> odd = Dataset.range(1, 9, 2)
            >>> even = Dataset.range(0, 9, 2)
            >>> choices = Dataset.from_tensor_slices([1, 0, 0, 1])
            >>> list(map(int, Dataset.choose_from_datasets([odd, even], choices)))
            [0, 1, 3, 2]
        """
        return _mix(
            datasets, check_dataset("choice_dataset", choice_dataset), stop_on_empty_dataset
        )

    def interleave(
        self,
        map_func: Callable[..., Dataset[U]],
        cycle_length: int | None = None,
        block_length: int = 1,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[U]:
        """Makes a dataset of each element, and interleaves the datasets.

        `names.interleave(TFRecordDataset)` reads the files of a dataset of names.

        Args:
            map_func: Called as in `map`; returns a Dataset, the same for the same element.
            cycle_length: How many datasets run at once and take turns, with this one's options;
                None or AUTOTUNE: 16.
            block_length: How many elements one dataset gives before the next one's turn.
            num_parallel_calls: Accepted as in tf.data, and ignored: the datasets run at once
                anyway.
            deterministic: False to skip datasets whose elements have not arrived; None follows
                `with_options`.

        Raises:
            ValueError: A number is less than 1.
            TypeError: When it runs: `map_func` does not return a Dataset.

        Examples:
            >>> starts = Dataset.from_tensor_slices([10, 20, 30])
            >>> list(map(int, starts.interleave(lambda n: Dataset.range(n, n + 2), cycle_length=2)))
            [10, 20, 11, 21, 30, 31]
        """
        check_calls(num_parallel_calls)
        plan = Plan.of(cycle_length, block_length, deterministic)
        return self._of(sources.Interleaved(self.chain, map_func, plan))

    def flat_map(self, map_func: Callable[..., Dataset[U]]) -> Dataset[U]:
        """Makes a dataset of each element, and gives the datasets' elements back to back.

        It is `interleave` with one open dataset.

        Examples:
            >>> list(map(int, Dataset.range(4).flat_map(Dataset.range)))
            [0, 0, 1, 0, 1, 2]
        """
        return self._of(sources.Interleaved(self.chain, map_func, Plan.of(1)))

    def concatenate(self, dataset: Dataset[U]) -> Dataset[T | U]:
        """The elements of this dataset, then those of another, with this one's options."""
        return self._of(sources.Concatenate((self.chain, check_dataset("dataset", dataset))))

    @overload  # elements of unknown type: only these are as good as none
    def batch(
        self: Dataset[Never],
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[Any]: ...
    @overload
    def batch(
        self: Dataset[bytes],
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[Frames]: ...
    @overload
    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[Any]: ...
    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[Any]:
        """Joins `batch_size` elements to a batch.

        The last batch may be smaller unless `drop_remainder`.

        A batch of records is a `Frames`. A batch of arrays or numbers is an array with one more
        dimension; `bytes` from a stage become an object array; dicts and tuples are batched part by
        part.

        Args:
            batch_size, drop_remainder: As above.
            num_parallel_calls, deterministic: Accepted as in tf.data, and ignored: a batch is a
                window or one copy, in order, without work for several threads.
        """
        check_calls(num_parallel_calls)
        if deterministic is not None:
            check_flag("deterministic", deterministic)
        return self._then(stages.Batch(batch_size, drop_remainder))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Dataset[Any]:
        """Joins `batch_size` elements to a batch, with arrays padded to one shape.

        Lists in Example messages are padded fastest while they are parsed:
        `batch(n).parse_example(features)` with a
        `FixedLenSequenceFeature(shape, dtype, allow_missing=True)` gives the same arrays. To
        shuffle or bucket rows first, `batch(n).parse_example` with a `RaggedFeature`, and
        `unbatch()`, keep them in columns.

        Args:
            batch_size, drop_remainder: As in `batch`.
            padded_shapes: The shape of each part of an element, in the same dicts and tuples; None
                or -1 in a shape, or None for all shapes, pads to the batch's longest array. A
                larger array is an error.
            padding_values: The value of padding, for each part or one for all; None for 0, and
                `b""` among strings.

        Raises:
            ValueError: When it runs: an array does not fit, or arrays differ in their number of
                dimensions.
        """
        padding = stages.Padding(padded_shapes, padding_values)
        return self._then(stages.PaddedBatch(batch_size, padding, drop_remainder))

    def ragged_batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset[Any]:
        """Joins `batch_size` elements to a batch, with arrays as the rows of a `RaggedTensor`.

        All dimensions of an array become ragged; numbers and strings are batched as in `batch`.

        Raises:
            ValueError: When it runs: arrays differ in their number of dimensions.
        """
        return self._then(stages.RaggedBatch(batch_size, drop_remainder))

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> Dataset[Any]:
        """Batches of elements of similar length.

        Each element waits in the bucket of its length until the bucket is full.

        Args:
            element_length_func: Returns an element's length; called as in `map`.
            bucket_boundaries: Bucket i is for lengths from boundary i - 1 up to boundary i,
                exclusive.
            bucket_batch_sizes: The batch size of each bucket: one more number than boundaries.
            padded_shapes, padding_values: As in `padded_batch`.
            pad_to_bucket_boundary: Pads unknown sizes (without shapes, the first dimension of each
                array) to the bucket's boundary minus 1; an element as long as the last boundary is
                an error.
            no_padding: Makes batches as `batch` does.
            drop_remainder: Whether elements that wait at the end are left out; otherwise they come
                in bucket order.

        Raises:
            ValueError: The arguments do not fit together. When it runs: arrays do not make one
                batch.
        """
        padding = None
        if not check_flag("no_padding", no_padding):
            padding = stages.Padding(padded_shapes, padding_values)
        return self._then(
            stages.Bucket(
                length_of=element_length_func,
                boundaries=tuple(bucket_boundaries),
                batch_sizes=tuple(bucket_batch_sizes),
                padding=padding,
                pad_to_bucket_boundary=pad_to_bucket_boundary,
                drop_remainder=drop_remainder,
            )
        )

    @overload
    def unbatch(self: Dataset[Never]) -> Dataset[Any]: ...
    @overload
    def unbatch(self: Dataset[Frames]) -> Dataset[bytes]: ...
    @overload
    def unbatch(self) -> Dataset[Any]: ...
    def unbatch(self) -> Dataset[Any]:
        """Splits each element into its rows.

        Frames are split into records; arrays (in dicts and tuples too), ragged and sparse tensors
        along their first dimension.
        """
        return self._then(stages.Unbatch())

    def rebatch(self, batch_size: int | Sequence[int], drop_remainder: bool = False) -> Dataset[T]:
        """Batches of another size.

        As `unbatch` and `batch`, but in columns, without an object per element.

        Args:
            batch_size: The number of elements in a batch; or a list of numbers, used in turn.
            drop_remainder: Whether a last, smaller batch is left out.

        Examples:
            >>> [batch.tolist() for batch in Dataset.range(7).batch(4).rebatch([2, 1])]
            [[0, 1], [2], [3, 4], [5], [6]]
        """
        rows = self._then(stages.Unbatch())
        if not isinstance(batch_size, list | tuple | np.ndarray) or not np.ndim(batch_size):
            return rows.batch(cast(int, batch_size), drop_remainder)
        return rows._then(stages.CyclicBatch(tuple(batch_size), drop_remainder))

    def window(
        self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False
    ) -> Dataset[Any]:
        """Datasets of `size` elements each.

        Elements that are tuples or dicts become tuples or dicts of datasets.

        Windows are held in memory, in columns. `flat_map` turns them back into elements.

        Args:
            size: The number of elements in a window.
            shift: The distance between the first elements of two windows; None for `size`.
            stride: The distance between two elements of a window.
            drop_remainder: Whether smaller windows at the end are left out.

        Examples:
            >>> windows = Dataset.range(5).window(3, shift=1, drop_remainder=True)
            >>> [batch.tolist() for batch in windows.flat_map(lambda window: window.batch(3))]
            [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        """
        return self._then(
            stages.Window(
                size=size,
                shift=size if shift is None else shift,
                stride=stride,
                drop_remainder=drop_remainder,
                dataset_of=in_memory,
            )
        )

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[..., Dataset[U]],
        window_size: int | None = None,
        window_size_func: Callable[[Any], Any] | None = None,
    ) -> Dataset[U]:
        """Gathers elements with the same key into windows.

        Gives the elements of the Dataset that `reduce_func` makes of each window.

        Args:
            key_func: Returns an element's key, a whole number; called as in `map`.
            reduce_func: Makes a Dataset of a key and the dataset of `window_size` elements with
                this key. At the end, it gets the remaining elements, the smallest keys first.
            window_size: How many elements are gathered.
            window_size_func: Returns that number for a key, instead.

        Raises:
            ValueError: Both or neither of the last two are given.

        Examples:
            >>> parity = Dataset.range(7).group_by_window(
            ...     lambda number: number % 2, lambda key, window: window.batch(3), window_size=3
            ... )
            >>> [batch.tolist() for batch in parity]
            [[0, 2, 4], [1, 3, 5], [6]]
        """
        if (window_size is None) == (window_size_func is None):
            raise ValueError(
                "group_by_window takes either window_size or window_size_func: pass one of them"
            )
        size = (
            check_integer("window_size", window_size, 1)
            if window_size_func is None
            else check_function("window_size_func", window_size_func)
        )
        grouped = self._then(stages.GroupByWindow(key_func, size, in_memory))
        return grouped.flat_map(check_function("reduce_func", reduce_func))

    def scan(self, initial_state: Any, scan_func: Callable[..., tuple[Any, U]]) -> Dataset[U]:
        """Calls a function for each element with a state, which it passes on to the next element.

        Args:
            initial_state: Arrays, numbers, strings, and dicts, tuples and lists of them: a saved
                state holds it.
            scan_func: Called with the state and the element (a tuple is one argument); returns a
                pair of the next state and the new element.

        Examples:
            >>> def add(total, number):
            ...     return total + number, total + number
            >>> list(map(int, Dataset.range(1, 5).scan(0, add)))
            [1, 3, 6, 10]
        """
        return self._then(stages.Scan.of(initial_state, scan_func))

    def unique(self) -> Dataset[T]:
        """Each element once, where it comes first.

        Runs and saved states keep a digest of 16 bytes for each.

        Examples:
            >>> list(map(int, Dataset.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique()))
            [1, 37, 2]
        """
        return self._then(stages.Unique())

    def rejection_resample(
        self,
        class_func: Callable[..., Any],
        target_dist: Any,
        initial_dist: Any = None,
        seed: int | None = None,
    ) -> Dataset[tuple[Any, T]]:
        """Leaves out elements at random, so that classes have the distribution `target_dist`.

        Args:
            class_func: Returns an element's class, from 0 on; called as in `map`.
            target_dist: The probability of each class in the result.
            initial_dist: The probability of each class in the input; None to count classes while
                elements pass.
            seed: The seed of the random numbers; None for another seed in each run, which a saved
                state keeps.

        Returns:
            Pairs of the class and the element.

        Raises:
            ValueError: Probabilities do not sum to 1, their numbers differ, or `initial_dist` is 0
                for a class that `target_dist` needs.

        Examples:
            >>> even = Dataset.range(1000).rejection_resample(
            ...     lambda number: number >= 900, target_dist=[0.5, 0.5], initial_dist=[0.9, 0.1]
            ... )

            All 100 of the rare class are kept, and about as many others:

            >>> sum(int(kind) for kind, number in even)
            100
        """
        target = stages.distribution("target_dist", target_dist)
        initial = (
            None if initial_dist is None else stages.distribution("initial_dist", initial_dist)
        )
        resample = stages.Resample(class_func, target, initial)
        numbers = Chain(sources.Random(seed, rerandomize=True))
        return self._of(sources.Zip((numbers, self.chain)))._then(resample)

    def apply(self, transformation_func: Callable[[Dataset[T]], Dataset[U]]) -> Dataset[U]:
        """Calls a function with this dataset and returns the Dataset that it makes.

        So a function can name a chain of verbs.

        Raises:
            TypeError: The function does not return a Dataset.

        Examples:
            >>> pairs = Dataset.range(5).apply(lambda dataset: dataset.batch(2))
            >>> pairs == Dataset.range(5).batch(2)
            True
        """
        result = check_function("transformation_func", transformation_func)(self)
        if not isinstance(result, Dataset):
            raise TypeError(
                f"transformation_func returned {describe_value(result)}: it must return a Dataset"
            )
        return result

    def parse_example(
        self,
        features: Mapping[str, Feature],
        *,
        string_columns: bool = False,
        num_parallel_calls: int | None = None,
    ) -> Dataset[Parsed]:
        """Parses each element, a batch of Example messages, into a dict of columns.

        It does so as `streamrec.parse_example`.

        `dataset.batch(1024).parse_example(features)` makes no object per record. A single record
        becomes a dict without the batch dimension.

        Args:
            features: The features to parse, by key.
            string_columns: Whether byte strings become BytesColumns, without a copy.
            num_parallel_calls: As in `map`. None costs the least; AUTOTUNE is faster if parsing
                takes longer than fetching and cores are idle.

        Raises:
            FeatureError: A value of `features` is not a configuration, at once. When it runs: a
                message is damaged, or does not fit its feature.
            ValueError: `num_parallel_calls` is less than 1.
        """
        parse = stages.Parse(features, string_columns)
        return (
            self._then(parse) if num_parallel_calls is None else self.map(parse, num_parallel_calls)
        )

    @overload
    def map(
        self,
        function: Callable[[T], Awaitable[U]],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[U]: ...
    @overload
    def map(
        self,
        function: Callable[[T], U],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[U]: ...
    @overload
    def map(
        self: Dataset[tuple[Any, ...]],
        function: Callable[..., Awaitable[U]],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[U]: ...
    @overload
    def map(
        self: Dataset[tuple[Any, ...]],
        function: Callable[..., U],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[U]: ...
    def map(
        self,
        function: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[Any]:
        """Calls `function` for each element.

        As in tf.data, the parts of a tuple are the arguments.

        Args:
            function: Any function, called in threads, or an async one, called on the event loop
                that fetches.
            num_parallel_calls: How many calls run at once; AUTOTUNE to tune the number; None for
                one at a time, which costs the least for a plain function: one thread calls it for a
                whole chunk.
            deterministic: Whether results keep the elements' order, or come as they are ready; None
                follows `with_options`. One call at a time always keeps the order.

        Raises:
            ValueError: `num_parallel_calls` is less than 1.
        """
        check_calls(num_parallel_calls)
        if num_parallel_calls is None and not is_async(function):
            return self._then(Map(function))
        calls = 1 if num_parallel_calls is None else int(num_parallel_calls)
        return self._of(sources.ParallelMap(self.chain, function, calls, deterministic))

    def filter(self, predicate: Callable[..., Any]) -> Dataset[T]:
        """The elements for which `predicate` returns a true value; it is called as in `map`."""
        return self._then(stages.Filter(predicate))

    def ignore_errors(self, log_warning: bool = False) -> Dataset[T]:
        """Leaves out elements that failed in earlier stages.

        These are `map`, `filter`, `parse_example`, `batch`, and others.

        `iterator.stats()` counts them (`errors_ignored` of this stage). Put it anywhere after those
        stages, but before a `cache`, which keeps no pass with a failed element. Damage in a shard,
        a store that fails and a generator that raises are not such errors: they end the run; see
        `on_error` of `TFRecordDataset`.

        Args:
            log_warning: Whether each is logged to "streamrec", with the error, the stage, the
                element's number, and the shard and record if they are known.

        Examples:
            >>> inverses = Dataset.from_tensor_slices([1, 0, 4]).map(lambda n: 1 / int(n))
            >>> list(inverses.ignore_errors())
            [1.0, 0.25]
        """
        return self._then(stages.IgnoreErrors(log_warning))

    def take_while(self, predicate: Callable[..., Any]) -> Dataset[T]:
        """The elements before the first one for which `predicate` returns a false value.

        It is called as in `map`.
        """
        return self._then(stages.TakeWhile(predicate))

    def enumerate(self, start: int = 0) -> Dataset[tuple[np.int64, T]]:
        """Pairs of a number, int64 from `start` on, and the element.

        Elements that are batches get an array of numbers.
        """
        return self._then(stages.Enumerate(start))

    def take(self, count: int) -> Dataset[T]:
        """The first `count` elements; all for a negative number. Other elements are not fetched."""
        return self._then(stages.Take(count))

    def skip(self, count: int) -> Dataset[T]:
        """All but the first `count` elements; none for a negative number.

        Skipped elements are fetched, too.
        """
        return self._then(stages.Skip(count))

    def shard(self, num_shards: int, index: int) -> Dataset[T]:
        """Each element whose number modulo `num_shards` is `index`.

        Other elements are fetched, too.

        Raises:
            ValueError: `index` is not between 0 and `num_shards`, exclusive.
        """
        return self._then(stages.Shard(num_shards, index))

    def shuffle(
        self,
        buffer_size: int | None,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
    ) -> Dataset[T]:
        """All elements in random order.

        A buffer is filled, then gives a random element for each that arrives.

        Args:
            buffer_size: The number of elements in the buffer. If they exceed a quarter of the
                memory budget, it holds fewer and warns. If the default budget is less than 1 GiB,
                that is a MemoryError, since the order would differ from that on other machines:
                pass `with_options(memory_budget=)`, or a smaller size. None for all elements, if
                `cardinality()` is known.
            seed: The seed of the order; None for another order in each run. A resumed run keeps its
                order.
            reshuffle_each_iteration: Whether each epoch, also of a later `repeat`, has another
                order.

        Raises:
            ValueError: `buffer_size` is less than 1, or None although the number of elements is
                unknown.

        Examples:
            >>> sorted(map(int, Dataset.range(5).shuffle(3, seed=7)))
            [0, 1, 2, 3, 4]
        """
        if buffer_size is None:
            buffer_size = max(1, self.cardinality()) if self.cardinality() >= 0 else None
        if buffer_size is None:
            raise ValueError(
                "shuffle(None) holds all elements, but their number is unknown here: pass "
                "buffer_size"
            )
        if buffer_size == UNKNOWN_CARDINALITY:
            self._ending("a shuffle of all elements")
            buffer_size = max(1, self.cardinality()) if self.cardinality() >= 0 else ALL_ELEMENTS
        return self._of(sources.Shuffle(self.chain, buffer_size, seed, reshuffle_each_iteration))

    def distribute(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        even: Literal["pad", "drop", "cycle"] | None = None,
        manifest: str | None = None,
    ) -> Dataset[T]:
        """This reader's share of the shards; call it directly after `TFRecordDataset`.

        Readers get whole shards if that divides the bytes fairly, otherwise byte ranges too. The
        shares of all ranks, and of the loader workers within each, hold each record once. A share
        stays the same in all epochs while shards and readers do not change.

        Args:
            rank: This process's number, from 0; None to ask torch.distributed, JAX, or `RANK` and
                `WORLD_SIZE` where the pipeline runs. Workers of a torch `DataLoader` divide their
                rank's share further.
            world_size: The number of processes; with `rank`.
            even: None: each record once, and similar loads. Otherwise all readers give exactly the
                same number of records: "drop" leaves out the last records (fewer than readers),
                "pad" continues with the first records of the data set, and "cycle" repeats the
                first records of a reader that has fewer.
            manifest: With `even`, the URL of the manifest or index, which has the number of records
                of each shard. A split of a `streamrec.tfds` folder knows them and needs none.

        Raises:
            ValueError: Other verbs come before it; `even` without `manifest`; a rank is out of
                range.
            PositionMismatchError: When it runs: the state to resume from was saved by another
                reader.
        """
        source = self.chain.source
        if not isinstance(source, Shards) or self.chain.stages:
            raise ValueError(
                "distribute assigns shards, but these are elements of stages: call it directly "
                "after TFRecordDataset, or use shard(num_shards, index), which assigns elements"
            )
        return self._of(sources.Distribute(source, rank_of(rank, world_size), even, manifest))

    def global_shuffle(
        self,
        seed: int,
        *,
        index: str,
        global_batch_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        even: Literal["pad", "drop", "cycle"] | None = None,
        quality: Quality | None = None,
        block_bytes: int = BLOCK_BYTES,
        window_bytes: int | None = None,
        slot_groups: int | None = None,
    ) -> Dataset[Any]:
        """All records of the data set in random order, distributed to ranks and workers.

        Call it directly after `TFRecordDataset`. The order depends only on the seed, the epoch and
        the index: not on which rank reads, where, or when. A state is one position, from which any
        number of ranks can resume, each record once. `docs/global-shuffle.md` has pictures and
        figures.

        Args:
            seed: The seed of the order.
            index: The URL of the index of these shards, which `write_index` makes.
            global_batch_size: How many records all ranks together take in a step. Elements are then
                batches: each rank's slots of the global batch (`Frames`). None: elements are
                records, one for each rank in a step.
            rank: This process's number, from 0; None to ask, as `distribute` does.
            world_size: The number of processes; with `rank`. It must divide the global batch size.
            even: How a last step with too few records is handled. None: each record comes once, and
                the last ranks have a smaller last batch, or none. "drop" leaves the step out; "pad"
                fills it with the first records of the epoch; "cycle" with the records that each
                slot had in the first step.
            quality: "exact" permutes all records, each of which is a request of its own; "blocks"
                permutes blocks of consecutive records, and mixes a window of blocks. None: "exact"
                for records of at least 64 KiB on average.
            block_bytes: For "blocks": about how large a block is. All ranks together mix up to 32
                of them at a time; each rank holds its part in memory.
            window_bytes, slot_groups: Deprecated. With one of them, "blocks" has an earlier order,
                in which many ranks, and each further worker, read blocks again.
                `window_bytes`, by default 128 MiB, is how many bytes are mixed at a time;
                `slot_groups`, by default up to 24, is how many ranks may read blocks of their own,
                and must divide the global batch size.

        Raises:
            ValueError: Other verbs come before it, or an argument is out of range. When it runs:
                the number of ranks does not divide the global batch size, or the memory budget does
                not hold the blocks that this rank reads at a time.
            ManifestError: When it runs: the index is damaged, or belongs to other shards.
            PositionMismatchError: When it runs: the state to resume from was saved with another
                index.
        """
        # Records are read by their numbers in the index, so no verb may have changed them before.
        source = self.chain.source
        if not isinstance(source, Shards) or self.chain.stages:
            raise ValueError(
                "global_shuffle orders the records of shards: call it directly after "
                "TFRecordDataset, and stages such as map after it"
            )
        if any(not portion.is_all for portion in source.known_portions or ()):
            raise ValueError(
                "global_shuffle orders all records of its shards, and these are a slice of them: "
                "take whole splits, or distribute() the slice and shuffle() it"
            )
        shuffle = sources.GlobalShuffle(
            shards=source,
            seed=seed,
            index=index,
            batch=global_batch_size,
            even=even,
            quality=quality,
            block_bytes=block_bytes,
            window_bytes=window_bytes,
            slot_groups=slot_groups,
            rank=rank_of(rank, world_size),
        )
        if window_bytes is not None or slot_groups is not None:
            warnings.warn(
                "window_bytes and slot_groups of global_shuffle are deprecated: without them, any "
                "number of ranks and workers reads each block once, in a new order",
                DeprecationWarning,
                stacklevel=3,  # the border of tracebacks is between
            )
        return self._of(shuffle)

    def repeat(self, count: int | None = None) -> Dataset[T]:
        """All elements `count` times.

        For None or a negative number they repeat without end, unless the first epoch is empty.

        Each repetition is an epoch: the second iteration of `dataset.repeat(2)` has the third and
        the fourth epoch.
        """
        return self._of(sources.Repeat(self.chain, -1 if count is None else count))

    def prefetch(
        self, buffer_size: int | None = None, *, buffer_bytes: int | None = None
    ) -> Dataset[T]:
        """Runs earlier stages ahead of later ones, with at most half of the memory budget.

        Args:
            buffer_size: How many elements may wait, as in tf.data; more if more come at a time
                (records of one block). AUTOTUNE or None for a buffer that grows when it is empty
                after it was full; 0 for no buffer.
            buffer_bytes: How many bytes may wait, instead.

        Raises:
            ValueError: A number is too small, or both are given.
        """
        size = check_integer("buffer_size", buffer_size, AUTOTUNE, none=True)
        nbytes = check_integer("buffer_bytes", buffer_bytes, 1, none=True)
        if size is not None and nbytes is not None:
            raise ValueError(f"buffer_size={size} and buffer_bytes={nbytes}: pass only one of them")
        return (
            self if size == 0 else self._of(sources.Prefetch(self.chain, size or AUTOTUNE, nbytes))
        )

    def cache(
        self,
        filename: str | os.PathLike[str] = "",
        *,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: AbstractFileSystem | None = None,
        retry: RetryPolicy | None = None,
    ) -> Dataset[T]:
        """Stores the elements of the first complete pass; later passes read the stored elements.

        Without a name, they are stored in memory, in at most half of the memory budget, as long as
        this Dataset, or one made from it, lives; if they do not fit, they are read again each
        epoch, with a warning. With a name, they are stored in that file, for all runs and
        processes. Only a pass to the end fills a cache. The file appears when it is complete, and
        is never replaced: remove it when the data has changed. Ranks and loader workers that read
        different records each have a file: `NAME-00001-of-00004` is that of reader 1 of 4.

        To keep what was read from a store, for any pipeline, take `cache_dir` of the storage
        options instead.

        Args:
            filename: A path or URL; "" for memory. A file can store records, arrays, numbers,
                strings, and dicts, tuples and lists of them.
            storage_options, filesystem, retry: As for `TFRecordDataset`.

        Raises:
            ValueError: The name is a pattern, with `*` or braces; or the dataset is endless and the
                file would only grow.
            CacheError: When it runs: the file is not a cache, or belongs to another pipeline.
            TypeError: When it runs: an element cannot be stored in a file.
        """
        name = check_path("filename", filename)
        if name:
            self._ending("the first pass of cache")
        retry = check_source(storage_options, filesystem, retry)
        file = sources.CacheFile.at(name, storage_options, filesystem, retry) if name else None
        return self._of(sources.Cache(self.chain, file))

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: AbstractFileSystem | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Writes all elements into a file, which `Dataset.load(path)` reads in any program.

        Waits until it is complete.

        Args:
            path: A path or URL. Elements may be records, arrays, numbers, strings, and dicts,
                tuples and lists of them.
            storage_options, filesystem, retry: As for `TFRecordDataset`.

        Raises:
            AlreadyExistsError: An object of this name exists; stores that cannot check this replace
                it.
            ValueError: The dataset is endless.
            TypeError: An element cannot be stored.

        Examples:
            >>> Dataset.range(3).save("memory://docs/saved")
            >>> list(map(int, Dataset.load("memory://docs/saved")))
            [0, 1, 2]
        """
        chain = self._ending("save")
        retry = check_source(storage_options, filesystem, retry)
        file = sources.CacheFile.at(
            check_path("path", path), storage_options, filesystem, retry, "save()"
        )
        with self._of(sources.Saving(chain, file)).iterate() as elements:
            deque(elements, maxlen=0)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A stream of Arrow record batches: `pyarrow.table(dataset)`, `polars.DataFrame(dataset)`.

        It needs pyarrow.

        The pipeline runs while batches are taken: one iteration, so one epoch. Elements must be
        batches: dicts of columns, as after `batch(n).parse_example(features)`, or records, which
        become one column "record". Numbers, and lists of them, are not copied. Byte strings are
        large_binary; `to_arrow(text=...)` makes them text. If `parse_example` is last, a
        FixedLenSequenceFeature becomes a list of the written values, without padding.

        Raises:
            MissingExtraError: pyarrow is not installed.
            TypeError: Elements are not batches.
            StreamrecError: The dataset is empty, and has no `parse_example` that gives a schema.
        """
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_arrow(self, *, text: Iterable[str] = ()) -> Any:
        """A `pyarrow.RecordBatchReader` of the batches, which runs the pipeline while it is read.

        It needs pyarrow.

        Args:
            text: The columns of byte strings that are text: they become large_utf8 instead of
                large_binary.

        Raises:
            MissingExtraError: pyarrow is not installed.
            FeatureError: A name in `text` is not a column of byte strings, or the column has bytes
                that are not UTF-8.
            TypeError, StreamrecError: As for `__arrow_c_stream__`.

        Examples:
            >>> dataset = Dataset.from_tensor_slices({"label": np.arange(5)}).batch(2)
            >>> dataset.to_arrow().read_all().to_pydict()
            {'label': [0, 1, 2, 3, 4]}
            >>> dataset = Dataset.from_tensor_slices({"name": [b"a", b"b"]}).batch(2)
            >>> dataset.to_arrow(text=["name"]).read_all().to_pydict()
            {'name': ['a', 'b']}
        """
        return pipeline.read_batches(
            self.chain, text, lambda chain: DatasetIterator(self._begun(None, None, False, chain))
        )

    def with_options(
        self,
        *,
        deterministic: bool | None = None,
        memory_budget: int | None = None,
        epoch: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> Dataset[T]:
        """The same pipeline with other options for all of it; None keeps an option.

        Args:
            deterministic: Whether stages without their own `deterministic` keep the order: reading
                shards, and `map` with several calls. True by default.
            memory_budget: Bytes that one run may hold: what is fetched, waits its turn, is worked
                on, or waits for the consumer. By default an eighth of the machine's memory (or the
                container's), 64 MiB to 1 GiB; `iterator.memory_budget` tells. All runs of a process
                together read ahead at most twice the largest of their budgets. A record that does
                not fit is read when the consumer waits for it.
            epoch: The epoch of the first iteration, from 0; later iterations have the next ones.
                All orders that differ from epoch to epoch depend on it and on the seed.
            rank: The rank that iterates, from 0, for a `distribute` or `global_shuffle` without
                one.
            world_size: The number of ranks; with `rank`.

        Raises:
            ValueError: A number is out of range, or only one of `rank` and `world_size` is given.
        """
        given: dict[str, Any] = {
            "deterministic": None
            if deterministic is None
            else check_flag("deterministic", deterministic),
            "memory_budget": check_integer("memory_budget", memory_budget, 1, none=True),
            "epoch": check_integer("epoch", epoch, 0, none=True),
            "rank": rank_of(rank, world_size),
        }
        options = replace(
            self.options, **{name: value for name, value in given.items() if value is not None}
        )
        changed = replace(self, options=options)
        changed._epochs.seed = self._epochs.seed  # of sources and stages without their own
        return changed

    def _then(self, stage: Stage) -> Dataset[Any]:
        return replace(self, chain=Chain(self.chain.source, (*self.chain.stages, stage)))

    def _of(self, source: Source) -> Dataset[Any]:
        return replace(self, chain=Chain(source))


def check_calls(calls: int | None) -> None:
    """Refuses a `num_parallel_calls` other than a positive number, AUTOTUNE, or None."""
    if check_integer("num_parallel_calls", calls, AUTOTUNE, none=True) == 0:
        raise ValueError("num_parallel_calls is 0: it must be 1 or more, AUTOTUNE, or None")


def check_dataset(name: str, dataset: Any) -> Chain:
    """The chain of an argument that must be a Dataset."""
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"{name} is {describe_value(dataset)}: a streamrec Dataset is expected, such as "
            "TFRecordDataset(...)"
        )
    return dataset.chain


def _join(datasets: Iterable[Dataset[Any]], source: Source) -> Dataset[Any]:
    """A Dataset of a source that joins several, with options derived from theirs."""
    return Dataset(Chain(source), Options.of(dataset.options for dataset in datasets))


def _mix(datasets: Sequence[Dataset[Any]], choices: Chain, stop_on_empty: bool) -> Dataset[Any]:
    """A Dataset that mixes others in the order of a chain of choices."""
    chains = tuple(check_dataset("datasets", dataset) for dataset in datasets)
    return _join(
        datasets,
        sources.Choose(chains, choices, check_flag("stop_on_empty_dataset", stop_on_empty)),
    )


def in_memory(column: Any, origins_of: OriginsOf) -> Dataset[Any]:
    """A dataset of the rows of a column; `origins_of` says what these were made of."""
    return Dataset(Chain(sources.Slices.holding(column, origins_of)))
