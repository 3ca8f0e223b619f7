"""Dataset: what a user holds. A frozen description with tf.data's verbs; iterating runs it (`runnable.py`).

Each verb is a docstring and one description, which lives where it is imported from; what arguments may be is checked
there too. First come the sources, then what joins several datasets, then what changes one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np
from fsspec import AbstractFileSystem

from streamrec import arguments
from streamrec.arguments import describe_value, flag, function, integer, mapping
from streamrec.pipeline import sources, stages
from streamrec.pipeline.arrow_stream import read_batches
from streamrec.pipeline.elements.columns import leaves, map_nest
from streamrec.pipeline.elements.positions import Positions
from streamrec.pipeline.elements.specs import signature_of
from streamrec.pipeline.engine.description import Chain, Source
from streamrec.pipeline.engine.options import AUTOTUNE, Options, check_calls
from streamrec.pipeline.engine.ranks import rank_of
from streamrec.pipeline.engine.session import SourceStores
from streamrec.pipeline.engine.stage import Stage
from streamrec.pipeline.iterators import DatasetIterator
from streamrec.pipeline.runnable import Runnable
from streamrec.pipeline.sources.global_shuffle import BLOCK_BYTES, WINDOW_BYTES, Quality
from streamrec.pipeline.sources.interleave import Plan
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.pipeline.stages.calling import Map, is_async
from streamrec.shards import Filenames
from streamrec.storage import RetryPolicy, check_source

if TYPE_CHECKING:
    from streamrec.example.features import Feature

__all__ = ["Dataset", "check_dataset"]

FEATURES = "feature configurations, such as {'image': FixedLenFeature([], bytes)}"

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True, repr=False)
class Dataset(Runnable[T]):
    """Elements that come from somewhere and go through stages; nothing runs before it is iterated.

    Iterate it with `for` (one background thread of the process then fetches while the loop runs) or
    with `async for` (on the caller's own loop). Each iteration is a run of its own, and the next epoch: `for epoch in
    range(3): for batch in dataset: ...` shuffles again each time, by (seed, epoch). What `cache()` keeps in memory,
    what globs matched and how large shards are is found once, and kept as long as the Dataset lives.

    A Dataset is a value: it can be pickled and compared. How often it was iterated does not count for that, and a
    pickled copy begins with its first epoch.

    Sharing: a Dataset is immutable, so threads, tasks and processes may share it. Each iteration is a run of its own.
    Several threads may take from one iterator of `iterate`, and several tasks from one of `aiterate`: each element goes
    to one of them.

    Args:
        chain: The source and the stages; made by `TFRecordDataset` and the methods below.
        options: What the whole pipeline is told; made by `with_options`.
    """

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
        return Dataset(Chain(sources.Range.of(tuple(integer("range", number) for number in args), output_type)))

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset[Any]:
        """One element: an array, a list or a number, or dicts and tuples of them, as a whole. It is copied.

        Examples:
            >>> list(Dataset.from_tensors(([1, 2], "a")))
            [(array([1, 2]), b'a')]
        """
        return Dataset(Chain(sources.Slices.single(tensors)))

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset[Any]:
        """The rows of an array, list, Frames, ragged or sparse tensor, or of several in dicts and tuples.

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
        generator: Callable[..., Any], args: tuple[Any, ...] | None = None, *, output_signature: Any = None
    ) -> Dataset[Any]:
        """The elements of what `generator(*args)` returns: an iterator, an iterable, or an async one.

        A sync one runs in a thread of its own, ahead of its consumer; an async one on the loop that runs the pipeline.
        It is called again for each epoch. A resumed run calls it too and drops the elements before its place; unless
        what it returns has `state_dict()`, called after each element, and `load_state_dict(state)`, called before
        iterating: then the state (JSON) is kept in the position. Elements are `bytes` (records), arrays, numbers, and
        dicts and tuples of them.

        Args:
            generator: Called with `args`.
            args: Its arguments.
            output_signature: What each element must be: a `TensorSpec`, or dicts and tuples of them (TensorFlow's are
                understood). Numbers and lists become arrays of its dtype. None takes elements as they are.

        Raises:
            TypeError: `output_signature` holds something else. When it runs: an element looks otherwise or is of a
                dtype that does not fit without loss; the message has its number.
            ValueError: When it runs: an element has another shape.

        Examples:
            >>> from streamrec import TensorSpec
            >>> list(Dataset.from_generator(lambda stop: iter(range(stop)), (3,)))
            [0, 1, 2]
            >>> list(Dataset.from_generator(lambda: [1, 2], output_signature=TensorSpec([], "float32")))
            [np.float32(1.0), np.float32(2.0)]
        """
        signature = None if output_signature is None else signature_of(output_signature)
        return Dataset(Chain(sources.Generated(function("generator", generator), tuple(args or ()), signature)))

    @staticmethod
    def list_files(
        file_pattern: Filenames,
        shuffle: bool | None = None,
        seed: int | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: AbstractFileSystem | None = None,
        retry: RetryPolicy | None = None,
    ) -> Dataset[Any]:
        """The names that patterns match, as bytes, which `TFRecordDataset` takes; a plain name is not looked up.

        Args:
            file_pattern: A glob, braces (`{00000..00127}`), a name, or a list of them: their order, each glob's sorted.
            shuffle: Whether names come in another order each epoch; None for where there is a seed.
            seed: Two runs with one seed have the same order; None for another one each run.
            storage_options, filesystem, retry: As for `TFRecordDataset`.

        Raises:
            NotFoundError: When it runs: nothing matches a glob.
        """
        stores = SourceStores(storage_options, filesystem, check_source(storage_options, filesystem, retry))
        wanted = shuffle if shuffle is None else flag("shuffle", shuffle)
        return Dataset(Chain(sources.Names.of(file_pattern, wanted, integer("seed", seed, none=True), stores)))

    @staticmethod
    def counter(start: int = 0, step: int = 1, dtype: Any = np.int64) -> Dataset[Any]:
        """The numbers `start`, `start + step`, ... without an end, as NumPy scalars.

        Examples:
            >>> list(map(int, Dataset.counter(5, 10).take(3)))
            [5, 15, 25]
        """
        return Dataset(Chain(sources.Counter(integer("start", start), integer("step", step), np.dtype(dtype).name)))

    @staticmethod
    def random(seed: int | None = None, rerandomize_each_iteration: bool | None = None) -> Dataset[Any]:
        """Random numbers without an end: int64, from 0 to 2**32 - 1, all alike likely.

        Args:
            seed: Two runs with one seed draw the same; None for another one each run, which a saved state keeps.
            rerandomize_each_iteration: True for other numbers in each epoch; None or False for the same, as in tf.data.

        Examples:
            >>> list(Dataset.random(seed=7).take(3)) == list(Dataset.random(seed=7).take(3))
            True
        """
        rerandomize = rerandomize_each_iteration is not None and flag(
            "rerandomize_each_iteration", rerandomize_each_iteration
        )
        return Dataset(Chain(sources.Random(integer("seed", seed, none=True), rerandomize)))

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
            path: A path or URL; not TensorFlow's, whose files are of another format.
            storage_options, filesystem, retry: As for `TFRecordDataset`.

        Raises:
            NotFoundError: When it runs: the file does not exist.
            CacheError: When it runs: it is something else.
        """
        retry = check_source(storage_options, filesystem, retry)
        return Dataset(
            Chain(sources.Saved(sources.CacheFile.at(os.fspath(path), storage_options, filesystem, retry, "load()")))
        )

    @staticmethod
    def zip(*args: Any) -> Dataset[Any]:
        """Elements of several datasets side by side, as tuples, up to the end of the shortest.

        Where there is one argument, a tuple or dict of datasets, nested or not, elements look as it does. The
        memory budget is the largest of theirs, and is shared; it is deterministic unless one of them is not.

        Raises:
            ValueError: No dataset was given.

        Examples:
            >>> list(Dataset.zip(Dataset.from_tensor_slices([b"a", b"b"]), Dataset.from_tensor_slices([b"c"])))
            [(b'a', b'c')]
        """
        nest = args[0] if len(args) == 1 else args
        return _join(leaves(nest), sources.Zip(map_nest(partial(check_dataset, "datasets"), nest)))

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[Dataset[Any]],
        weights: Any = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset[Any]:
        """Elements of several datasets, each of one that is drawn at random.

        Args:
            datasets: At least one; those of weight 0 are left out, and if all weights are 0 the result is empty.
            weights: How likely each is, relative to the others: a list or an array; None for all alike.
            seed: Two runs with one seed draw the same; None for another one each run, which a saved state keeps.
            stop_on_empty_dataset: Whether all ends where one is drawn that has no more, or it is passed over.
            rerandomize_each_iteration: True to draw again in each epoch; None or False for the same choices in each, as
                in tf.data.

        Raises:
            ValueError: No dataset was given, or `weights` has another length or a negative number.

        Examples:
            >>> one, two = Dataset.range(4), Dataset.range(10, 14)
            >>> sorted(int(number) for number in Dataset.sample_from_datasets([one, two], [3, 1]))
            [0, 1, 2, 3, 10, 11, 12, 13]
        """
        rerandomize = rerandomize_each_iteration is not None and flag(
            "rerandomize_each_iteration", rerandomize_each_iteration
        )
        shares = sources.weights_of(weights, len(datasets))
        seed = integer("seed", seed, none=True)
        drawn = [dataset for dataset, share in zip(datasets, shares, strict=True) if share]
        if not drawn:
            return _mix(datasets, Chain(sources.Range.of((0,), np.int64)), stop_on_empty_dataset)
        choices = sources.Choices(tuple(filter(None, shares)), seed, rerandomize)
        return _mix(drawn, Chain(choices), stop_on_empty_dataset)

    @staticmethod
    def choose_from_datasets(
        datasets: Sequence[Dataset[Any]], choice_dataset: Dataset[Any], stop_on_empty_dataset: bool = True
    ) -> Dataset[Any]:
        """Elements of several datasets, each of the one whose number `choice_dataset` gives.

        Args:
            datasets: At least one.
            choice_dataset: Integers from 0 to the number of datasets, exclusive. Where it ends, all ends.
            stop_on_empty_dataset: Whether all ends where one is chosen that has no more, or it is passed over.

        Raises:
            ValueError: No dataset was given. When it runs: a choice is out of range.
            TypeError: When it runs: a choice is not an integer.

        Examples:
            >>> odd, even = Dataset.range(1, 9, 2), Dataset.range(0, 9, 2)
            >>> list(map(int, Dataset.choose_from_datasets([odd, even], Dataset.from_tensor_slices([1, 0, 0, 1]))))
            [0, 1, 3, 2]
        """
        return _mix(datasets, check_dataset("choice_dataset", choice_dataset), stop_on_empty_dataset)

    def interleave(
        self,
        map_func: Callable[..., Dataset[Any]],
        cycle_length: int | None = None,
        block_length: int = 1,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[Any]:
        """Makes a dataset of each element, and interleaves these: `names.interleave(TFRecordDataset)`.

        Args:
            map_func: Called as by `map`; it gives a Dataset, and the same one for the same element.
            cycle_length: How many run at once and take turns, within this one's options; None or AUTOTUNE for 16.
            block_length: Elements from one before the next has its turn.
            num_parallel_calls: Accepted as in tf.data, and ignored: they run at once anyway.
            deterministic: False to pass over those that have nothing at hand; None: as `with_options` says.

        Raises:
            ValueError: A number is less than 1.
            TypeError: When it runs: `map_func` gives something else.

        Examples:
            >>> starts = Dataset.from_tensor_slices([10, 20, 30])
            >>> list(map(int, starts.interleave(lambda n: Dataset.range(n, n + 2), cycle_length=2)))
            [10, 20, 11, 21, 30, 31]
        """
        check_calls(num_parallel_calls)
        plan = Plan.of(cycle_length, block_length, deterministic)
        return self._of(sources.Interleaved(self.chain, function("map_func", map_func), plan))

    def flat_map(self, map_func: Callable[..., Dataset[Any]]) -> Dataset[Any]:
        """Makes a dataset of each element, as `interleave` does, and gives the elements of one after the other.

        Examples:
            >>> list(map(int, Dataset.range(4).flat_map(Dataset.range)))
            [0, 0, 1, 0, 1, 2]
        """
        return self._of(sources.Interleaved(self.chain, function("map_func", map_func), Plan.of(1)))

    def concatenate(self, dataset: Dataset[Any]) -> Dataset[Any]:
        """The elements of this one, then those of the other, within this one's options."""
        return self._of(sources.Concatenate((self.chain, check_dataset("dataset", dataset))))

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset[Any]:
        """Joins each `batch_size` elements in one; the last batch may be smaller unless `drop_remainder`.

        A batch of records is a `Frames`. A batch of arrays or numbers is an array with one more dimension,
        `bytes` that a stage made become an object array, and dicts and tuples are batched part by part.

        Args:
            batch_size, drop_remainder: As above.
            num_parallel_calls, deterministic: Taken for tf.data's sake, and change nothing: a batch is a window or one
                copy, in order, with nothing to divide among threads.
        """
        check_calls(num_parallel_calls)
        if deterministic is not None:
            flag("deterministic", deterministic)
        return self._then(stages.Batch(integer("batch_size", batch_size, 1), flag("drop_remainder", drop_remainder)))

    def padded_batch(
        self, batch_size: int, padded_shapes: Any = None, padding_values: Any = None, drop_remainder: bool = False
    ) -> Dataset[Any]:
        """Joins each `batch_size` elements in one, with arrays padded to one shape.

        Lists of Example messages are padded fastest while they are parsed: `batch(n).parse_example(features)` with a
        `FixedLenSequenceFeature(shape, dtype, allow_missing=True)` gives the same arrays. Where rows are to be shuffled
        or put in buckets first, `batch(n).parse_example` with a `RaggedFeature`, and `unbatch()`, keep them in columns.

        Args:
            batch_size, drop_remainder: As in `batch`.
            padded_shapes: The shape for each part of an element, in dicts and tuples as the element's; None or -1 in
                a shape, and None for all, is the batch's longest. What is larger is an error.
            padding_values: What is added at the end, for each part or one for all; None for 0, and `b""` among strings.

        Raises:
            ValueError: When it runs: an array does not fit, or arrays differ in their number of dimensions.
        """
        size, drop = integer("batch_size", batch_size, 1), flag("drop_remainder", drop_remainder)
        return self._then(stages.PaddedBatch(size, stages.Padding(padded_shapes, padding_values), drop))

    def ragged_batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset[Any]:
        """Joins each `batch_size` elements in one, with arrays as the rows of a `RaggedTensor`.

        Every dimension of an array is a ragged one; numbers and strings are batched as `batch` does it.

        Raises:
            ValueError: When it runs: arrays differ in their number of dimensions.
        """
        return self._then(
            stages.RaggedBatch(integer("batch_size", batch_size, 1), flag("drop_remainder", drop_remainder))
        )

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
        """Batches of elements of about one length: each waits in the bucket of its length until that is full.

        Args:
            element_length_func: Gives an element's length; it is called as by `map`.
            bucket_boundaries: Bucket i is for lengths from boundary i - 1 up to boundary i, exclusive.
            bucket_batch_sizes: How many make a batch, for each bucket: one more than boundaries.
            padded_shapes, padding_values: As in `padded_batch`.
            pad_to_bucket_boundary: What is unknown of a shape (without shapes, the first dimension of each array) is
                padded to the bucket's boundary minus 1; an element as long as the last boundary is an error.
            no_padding: Batches as `batch` makes them.
            drop_remainder: Whether what waits at the end is left out; else it comes in bucket order.

        Raises:
            ValueError: The arguments do not fit together; or, when it runs, arrays do not.
        """
        padding = None if flag("no_padding", no_padding) else stages.Padding(padded_shapes, padding_values)
        boundaries = tuple(integer("bucket_boundaries", boundary) for boundary in bucket_boundaries)
        sizes = tuple(integer("bucket_batch_sizes", size, 1) for size in bucket_batch_sizes)
        length_of, drop = function("element_length_func", element_length_func), flag("drop_remainder", drop_remainder)
        pad = flag("pad_to_bucket_boundary", pad_to_bucket_boundary)
        return self._then(stages.Bucket(length_of, boundaries, sizes, padding, pad, drop))

    def unbatch(self) -> Dataset[Any]:
        """Splits each element into its rows: Frames into records, arrays (in dicts and tuples too) along their first
        dimension; ragged and sparse tensors likewise.
        """
        return self._then(stages.Unbatch())

    def rebatch(self, batch_size: int | Sequence[int], drop_remainder: bool = False) -> Dataset[Any]:
        """Batches of another size: `unbatch` and `batch`, in columns, without an object per element.

        Args:
            batch_size: How many elements make a batch; or a list of numbers, which take turns.
            drop_remainder: Whether a last, smaller batch is left out.

        Examples:
            >>> [batch.tolist() for batch in Dataset.range(7).batch(4).rebatch([2, 1])]
            [[0, 1], [2], [3, 4], [5], [6]]
        """
        if not isinstance(batch_size, list | tuple | np.ndarray) or not np.ndim(batch_size):
            return self.unbatch().batch(cast(int, batch_size), drop_remainder)
        sizes = tuple(integer("batch_size", size, 1) for size in batch_size)
        return self.unbatch()._then(stages.CyclicBatch(sizes, flag("drop_remainder", drop_remainder)))

    def window(
        self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False
    ) -> Dataset[Any]:
        """Datasets of `size` elements each; a tuple or dict of datasets where elements are tuples or dicts.

        Windows are held in memory, in columns. `flat_map` makes elements of them again.

        Args:
            size: How many elements a window has.
            shift: How many elements there are from the beginning of a window to that of the next; None for `size`.
            stride: How many elements there are from one of a window to the next.
            drop_remainder: Whether the last windows are left out where they have fewer.

        Examples:
            >>> windows = Dataset.range(5).window(3, shift=1, drop_remainder=True)
            >>> [batch.tolist() for batch in windows.flat_map(lambda window: window.batch(3))]
            [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        """
        size = integer("size", size, 1)
        shift = size if shift is None else integer("shift", shift, 1)
        drop = flag("drop_remainder", drop_remainder)
        return self._then(stages.Window(size, shift, integer("stride", stride, 1), drop, in_memory))

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[..., Dataset[Any]],
        window_size: int | None = None,
        window_size_func: Callable[[Any], Any] | None = None,
    ) -> Dataset[Any]:
        """Gathers elements of one key, and gives the elements of what `reduce_func` makes of them.

        Args:
            key_func: Gives an element's key, a whole number; it is called as by `map`.
            reduce_func: Makes a Dataset of a key and of the dataset of `window_size` elements of it; of fewer at the
                end, where the smallest keys come first.
            window_size: How many elements are gathered.
            window_size_func: Gives that number for a key, instead.

        Raises:
            ValueError: Both or neither of the last two are given.

        Examples:
            >>> parity = Dataset.range(7).group_by_window(lambda n: n % 2, lambda key, window: window.batch(3), 3)
            >>> [batch.tolist() for batch in parity]
            [[0, 2, 4], [1, 3, 5], [6]]
        """
        if (window_size is None) == (window_size_func is None):
            raise ValueError("group_by_window wants window_size or window_size_func, and not both")
        size = (
            integer("window_size", window_size, 1)
            if window_size_func is None
            else function("window_size_func", window_size_func)
        )
        grouped = self._then(stages.GroupByWindow(function("key_func", key_func), size, in_memory))
        return grouped.flat_map(function("reduce_func", reduce_func))

    def scan(self, initial_state: Any, scan_func: Callable[..., Any]) -> Dataset[Any]:
        """Elements that a function makes, with a state that goes from each element to the next.

        Args:
            initial_state: Arrays, numbers, strings, and dicts, tuples and lists of them: a saved state holds it.
            scan_func: Called with the state and the element (a tuple is one argument); it gives a pair, the next state
                and what comes in the element's place.

        Examples:
            >>> sums = Dataset.range(1, 5).scan(0, lambda total, number: (total + number, total + number))
            >>> list(map(int, sums))
            [1, 3, 6, 10]
        """
        return self._then(stages.Scan.of(initial_state, function("scan_func", scan_func)))

    def unique(self) -> Dataset[T]:
        """Each element once, where it comes first. What came is kept as digests of 16 bytes, in saved states too.

        Examples:
            >>> list(map(int, Dataset.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique()))
            [1, 37, 2]
        """
        return self._then(stages.Unique())

    def rejection_resample(
        self, class_func: Callable[..., Any], target_dist: Any, initial_dist: Any = None, seed: int | None = None
    ) -> Dataset[Any]:
        """Leaves elements out at random, so that classes come as often as `target_dist` says.

        Args:
            class_func: Gives an element's class, from 0 on; it is called as by `map`.
            target_dist: A probability for each class.
            initial_dist: How likely each is in the input; None to count them as they pass.
            seed: Two runs with one seed draw the same; None for other numbers each run, which a saved state keeps.

        Returns:
            Pairs of the class and the element.

        Raises:
            ValueError: Probabilities do not sum up to 1, or are not as many; a class is wanted that never comes.

        Examples:
            >>> even = Dataset.range(1000).rejection_resample(lambda number: number >= 900, [0.5, 0.5], [0.9, 0.1])
            >>> sum(int(kind) for kind, number in even)  # all of the rare class are kept, and as many others, or nearly
            100
        """
        target = stages.distribution("target_dist", target_dist)
        initial = None if initial_dist is None else stages.distribution("initial_dist", initial_dist)
        resample = stages.Resample(function("class_func", class_func), target, initial)
        drawn = Chain(sources.Random(integer("seed", seed, none=True), rerandomize=True))
        return self._of(sources.Zip((drawn, self.chain)))._then(resample)

    def apply(self, transformation_func: Callable[[Dataset[T]], Dataset[Any]]) -> Dataset[Any]:
        """What a function makes of this dataset: a chain of verbs with a name.

        Raises:
            TypeError: It does not return a Dataset.

        Examples:
            >>> Dataset.range(5).apply(lambda dataset: dataset.batch(2)) == Dataset.range(5).batch(2)
            True
        """
        made = function("transformation_func", transformation_func)(self)
        if not isinstance(made, Dataset):
            raise TypeError(f"transformation_func gave {describe_value(made)}: a streamrec Dataset is wanted")
        return made

    def parse_example(
        self, features: Mapping[str, Feature], *, string_columns: bool = False, num_parallel_calls: int | None = None
    ) -> Dataset[Any]:
        """Parses each element, a batch of Example messages, into a dict of columns, as `streamrec.parse_example` does.

        `dataset.batch(1024).parse_example(features)` makes no object per record. A record alone gives a dict
        without the batch's dimension.

        Args:
            features: What to parse, by key.
            string_columns: Whether byte strings come as BytesColumns, without a copy.
            num_parallel_calls: As in `map`. One after the other costs the least; AUTOTUNE is faster where parsing
                takes longer than fetching, and there are cores to spare.

        Raises:
            FeatureError: When it runs: a message is damaged or is not as described.
            ValueError: `num_parallel_calls` is less than 1.
        """
        parse = stages.Parse(dict(mapping("features", features, FEATURES)), flag("string_columns", string_columns))
        return self._then(parse) if num_parallel_calls is None else self.map(parse, num_parallel_calls)

    def map(
        self, function: Callable[..., Any], num_parallel_calls: int | None = None, deterministic: bool | None = None
    ) -> Dataset[Any]:
        """Calls `function` for each element; where that is a tuple, its parts are the arguments, as in tf.data.

        Args:
            function: Any function, called in threads, or an async one, called on the event loop that fetches.
            num_parallel_calls: How many calls there are at once; AUTOTUNE for as many as help; None for one after
                the other (a plain function then costs the least: it is called for a whole chunk in one thread).
            deterministic: Whether results keep the elements' order, or come as they are ready; None: as `with_options`
                says. One call at a time always keeps it.

        Raises:
            ValueError: `num_parallel_calls` is less than 1.
        """
        check_calls(num_parallel_calls)
        if num_parallel_calls is None and not is_async(arguments.function("function", function)):
            return self._then(Map(function))
        calls = 1 if num_parallel_calls is None else int(num_parallel_calls)
        return self._of(sources.ParallelMap(self.chain, arguments.function("function", function), calls, deterministic))

    def filter(self, predicate: Callable[..., Any]) -> Dataset[T]:
        """The elements for which `predicate` gives something true; it is called as by `map`."""
        return self._then(stages.Filter(function("predicate", predicate)))

    def ignore_errors(self, log_warning: bool = False) -> Dataset[T]:
        """Leaves out elements that failed before this: in `map`, `filter`, `parse_example`, `batch`, `interleave`, ...

        `iterator.stats()` counts them (`errors_ignored` of this stage). It may come anywhere after that; before a
        `cache`, which keeps no pass in which an element failed. Damage in a shard, a store that fails and a generator
        that raises are not such errors: they end the run; see `on_error` of `TFRecordDataset`.

        Args:
            log_warning: Whether the log "streamrec" tells of each: the error, the stage, the element's number, and the
                shard and record where these are known.

        Examples:
            >>> inverses = Dataset.from_tensor_slices([1, 0, 4]).map(lambda n: 1 / int(n)).ignore_errors()
            >>> list(inverses)
            [1.0, 0.25]
        """
        return self._then(stages.IgnoreErrors(flag("log_warning", log_warning)))

    def take_while(self, predicate: Callable[..., Any]) -> Dataset[T]:
        """The elements before the first for which `predicate` gives something false; it is called as by `map`."""
        return self._then(stages.TakeWhile(function("predicate", predicate)))

    def enumerate(self, start: int = 0) -> Dataset[Any]:
        """Pairs of a number, int64 from `start` on, and the element; batched, an array and the elements' batch."""
        return self._then(stages.Enumerate(integer("start", start)))

    def take(self, count: int) -> Dataset[T]:
        """The first `count` elements; all of them for a negative number. What is not taken is not fetched."""
        return self._then(stages.Take(max(-1, integer("count", count))))

    def skip(self, count: int) -> Dataset[T]:
        """All but the first `count` elements; none for a negative number. What is skipped is fetched all the same."""
        return self._then(stages.Skip(max(-1, integer("count", count))))

    def shard(self, num_shards: int, index: int) -> Dataset[T]:
        """Every element whose number, modulo `num_shards`, is `index`. What is left out is fetched all the same.

        Raises:
            ValueError: `index` is not between 0 and `num_shards`, exclusive.
        """
        return self._then(stages.Shard(integer("num_shards", num_shards, 1), integer("index", index, 0)))

    def shuffle(
        self, buffer_size: int | None, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Dataset[T]:
        """All elements in random order, by a buffer: filled, then a random one leaves for each that comes.

        Args:
            buffer_size: Elements that it holds. Fewer, with a warning, if a quarter of the memory budget is less. But
                where the default budget is less than 1 GiB, that is a MemoryError, as the order would be another one
                than elsewhere: give `with_options(memory_budget=)`, or a smaller size.
                None for all, where `cardinality()` knows how many there are.
            seed: What the order comes from; None for another order in each run. A resumed run goes on with its own.
            reshuffle_each_iteration: Whether each epoch of a later `repeat` has an order of its own.

        Raises:
            ValueError: `buffer_size` is less than 1, or None where the number of elements is not known.

        Examples:
            >>> sorted(map(int, Dataset.range(5).shuffle(3, seed=7)))
            [0, 1, 2, 3, 4]
        """
        if buffer_size is None:
            buffer_size = max(1, self.cardinality()) if self.cardinality() >= 0 else None
        if buffer_size is None:
            raise ValueError("shuffle(None) holds all elements, and their number is unknown here: give buffer_size")
        size, seed = integer("buffer_size", buffer_size, 1), integer("seed", seed, none=True)
        return self._of(
            sources.Shuffle(self.chain, size, seed, flag("reshuffle_each_iteration", reshuffle_each_iteration))
        )

    def distribute(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        even: Literal["pad", "drop", "cycle"] | None = None,
        manifest: str | None = None,
    ) -> Dataset[T]:
        """This reader's share of the shards; it comes right after `TFRecordDataset`.

        Shards are dealt whole where that is fair, and by ranges of their bytes where it is not; the shares of all
        ranks, and of the loader workers within each, hold each record once. Where shards and readers do not change,
        a share does not change from epoch to epoch.

        Args:
            rank: This process's number, from 0; None to ask torch.distributed, JAX, or `RANK` and `WORLD_SIZE`, when
                and where the pipeline runs. Workers of a torch `DataLoader` divide their rank's share further.
            world_size: How many processes there are; with `rank`.
            even: None: each record once, and readers of about the same load. Else all readers give exactly as many
                records: "drop" leaves out the last ones (fewer than there are readers), "pad" goes on with the first
                of the data set where it ends, and "cycle" repeats the first records of a reader that has fewer.
            manifest: With `even`, the URL of the manifest or of the index, which says how many records a shard holds.

        Raises:
            ValueError: It comes elsewhere; `even` without `manifest`; a rank out of its range.
            PositionMismatchError: When it runs: the state to resume from was saved by another reader.
        """
        source = self.chain.source
        if not isinstance(source, Shards) or self.chain.stages:
            raise ValueError(
                "distribute can only assign shards, and these are elements of stages: call it directly after "
                "TFRecordDataset, or use shard(num_shards, index), which assigns elements"
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
        window_bytes: int = WINDOW_BYTES,
        slot_groups: int | None = None,
    ) -> Dataset[Any]:
        """All records of the data set in random order, distributed to ranks and workers; right after `TFRecordDataset`.

        The order depends on the seed, the epoch and the index alone: not on which rank reads, where, or in which time.
        A state is one position: any number of ranks goes on there, each record once. `docs/global-shuffle.md`
        has pictures and figures.

        Args:
            seed: Which order.
            index: The URL of the index of these shards, which `write_index` makes.
            global_batch_size: How many records all ranks together take in a step. Elements are then batches: each
                rank's slots of the global batch (`Frames`). None: elements are records, one for each rank in a step.
            rank: This process's number, from 0; None to ask, as `distribute` does.
            world_size: How many processes there are; with `rank`. It must divide the global batch size.
            even: What is done where the last step has too few records. None: each record comes once, and the last
                ranks have a smaller last batch, or none. "drop" leaves the step out, "pad" goes on with the first
                records of the epoch, "cycle" with those that each slot had in the first step.
            quality: "exact" for a permutation of all records, each of which is a request of its own; "blocks" to
                permute blocks of records that follow each other, and mix a window of them. None: "exact" where records
                have 64 KiB and more on average.
            block_bytes: Of "blocks": about how large a block is.
            window_bytes: Of "blocks": how many bytes of blocks all ranks together mix at a time; each holds its part
                of them in memory.
            slot_groups: Of "blocks": the window is divided into this many parts, of which each has its own slots of a
                global batch. Ranks whose number divides it each read blocks of their own; others read some blocks
                twice. It divides the global batch size. None: the number up to 24 that most numbers divide.

        Raises:
            ValueError: It comes elsewhere, or an argument is out of its range. When it runs: the ranks do not divide
                the global batch size, or the memory budget does not hold this rank's part of the window.
            ManifestError: When it runs: the index is damaged, or that of other shards.
            PositionMismatchError: When it runs: the state to resume from was saved with another index.
        """
        source = self.chain.source
        if not isinstance(source, Shards) or self.chain.stages:
            raise ValueError(
                "global_shuffle can only order the records of shards: call it directly after TFRecordDataset, and "
                "stages such as map after it"
            )
        return self._of(
            sources.GlobalShuffle(
                source,
                integer("seed", seed),
                index,
                integer("global_batch_size", global_batch_size, 1, none=True),
                even,
                quality,
                integer("block_bytes", block_bytes, 1),
                integer("window_bytes", window_bytes, 1),
                integer("slot_groups", slot_groups, 1, none=True),
                rank_of(rank, world_size),
            )
        )

    def repeat(self, count: int | None = None) -> Dataset[T]:
        """All elements `count` times over; None or a negative number without end, unless the first epoch has none.

        Each is an epoch: of the second iteration of `dataset.repeat(2)`, the third and the fourth.
        """
        return self._of(sources.Repeat(self.chain, -1 if count is None else max(-1, integer("count", count))))

    def prefetch(self, buffer_size: int | None = None, *, buffer_bytes: int | None = None) -> Dataset[T]:
        """Lets the stages before this run ahead of those after it, within at most half of the memory budget.

        Args:
            buffer_size: By how many elements, as in tf.data; where more come at a time (records of one block), by as
                many as come. AUTOTUNE or None for a buffer that grows when it was found empty after it had been full;
                0 for none.
            buffer_bytes: By how many bytes, instead.

        Raises:
            ValueError: A number is too small, or both are given.
        """
        size = integer("buffer_size", buffer_size, AUTOTUNE, none=True)
        nbytes = integer("buffer_bytes", buffer_bytes, 1, none=True)
        if size is not None and nbytes is not None:
            raise ValueError(f"buffer_size={size} and buffer_bytes={nbytes}: give one of them")
        return self if size == 0 else self._of(sources.Prefetch(self.chain, size or AUTOTUNE, nbytes))

    def cache(
        self,
        filename: str | os.PathLike[str] = "",
        *,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: AbstractFileSystem | None = None,
        retry: RetryPolicy | None = None,
    ) -> Dataset[T]:
        """Keeps the elements of the first whole pass, and reads all later ones from there.

        Without a name they are kept in memory, within half of the memory budget, as long as this Dataset lives, or one
        that was made of it; what does not fit is read again each epoch, with a warning. With one they are kept in that
        file, for all runs and processes. Only a pass to the end fills either. The file appears when it is complete, and
        is never replaced: remove it when the data changed.
        Ranks and workers that read different records need a name each.

        Args:
            filename: A path or URL; "" for memory. A file takes records, arrays, numbers and strings, and dicts, tuples
                and lists of them.
            storage_options, filesystem, retry: As for `TFRecordDataset`.

        Raises:
            ValueError: The name is a pattern: it has `*`, or braces that stand for several names; or the dataset has no
                end, and the file would only grow.
            CacheError: When it runs: the file is something else, or the cache of another pipeline.
            TypeError: When it runs: an element cannot be stored in a file.
        """
        name = os.fspath(filename)
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
        """Writes all elements into a file, which `Dataset.load(path)` reads in any program. Waits until it is whole.

        Args:
            path: A path or URL. Elements are records, arrays, numbers and strings, and dicts, tuples and lists of them.
            storage_options, filesystem, retry: As for `TFRecordDataset`.

        Raises:
            AlreadyExistsError: There is something already, on stores that can tell; others replace it.
            ValueError: The dataset has no end.
            TypeError: An element cannot be stored.

        Examples:
            >>> Dataset.range(3).save("memory://docs/saved")
            >>> list(map(int, Dataset.load("memory://docs/saved")))
            [0, 1, 2]
        """
        chain = self._ending("save")
        retry = check_source(storage_options, filesystem, retry)
        file = sources.CacheFile.at(os.fspath(path), storage_options, filesystem, retry, "save()")
        with self._of(sources.Saving(chain, file)).iterate() as elements:
            deque(elements, maxlen=0)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The batches as a stream of Arrow record batches: `pyarrow.table(dataset)`, `polars.DataFrame(dataset)`.

        The pipeline runs while they are taken: one iteration, so one epoch. Elements must be batches: dicts of columns,
        as after `batch(n).parse_example(features)`, or records, which become one column "record". Numbers, and lists of
        them, are not copied. Byte strings are large_binary; `to_arrow(text=...)` makes them text. A
        FixedLenSequenceFeature is a list of what was written, without padding, where `parse_example` comes last.
        It needs pyarrow.

        Raises:
            MissingExtraError: pyarrow is not installed.
            TypeError: Elements are not batches.
            StreamrecError: It is empty, and has no `parse_example` that would give the schema.
        """
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_arrow(self, *, text: Iterable[str] = ()) -> Any:
        """The batches as a `pyarrow.RecordBatchReader`, which runs the pipeline as it is read; needs pyarrow.

        Args:
            text: Names of columns of byte strings that are text: they become large_utf8 instead of large_binary.

        Raises:
            MissingExtraError: pyarrow is not installed.
            FeatureError: `text` names no column, or one without byte strings.
            TypeError, StreamrecError: As for `__arrow_c_stream__`. Bytes in a column of `text` that are not UTF-8 are
                a FeatureError with the record and the feature.

        Examples:
            >>> dataset = Dataset.from_tensor_slices({"label": np.arange(5)}).batch(2)
            >>> dataset.to_arrow().read_all().to_pydict()
            {'label': [0, 1, 2, 3, 4]}
            >>> dataset = Dataset.from_tensor_slices({"name": [b"a", b"b"]}).batch(2)
            >>> dataset.to_arrow(text=["name"]).read_all().to_pydict()
            {'name': ['a', 'b']}
        """
        return read_batches(self.chain, text, lambda chain: DatasetIterator(self._begun(None, None, False, chain)))

    def with_options(
        self,
        *,
        deterministic: bool | None = None,
        memory_budget: int | None = None,
        epoch: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> Dataset[T]:
        """The same pipeline with options that hold for all of it; what is not given stays as it was.

        Args:
            deterministic: Whether stages that were not told by an argument of their own keep the order: reading shards,
                and `map` of several calls. True by default.
            memory_budget: Bytes that one run may hold: what is fetched, waits its turn, is worked on, or waits for the
                consumer. By default an eighth of the machine's memory (or the container's), 64 MiB to 1 GiB;
                `iterator.memory_budget` tells. All runs of a process together read ahead at most twice the largest of
                their budgets. A record that does not fit is read when the consumer waits for it.
            epoch: The epoch that the first iteration is, from 0; later iterations are those after it. With the seed, it
                decides every order that changes from epoch to epoch.
            rank: The rank that iterates, from 0, for a `distribute` or `global_shuffle` that was given none.
            world_size: How many ranks there are; goes with `rank`.

        Raises:
            ValueError: A number is out of range, or only one of `rank` and `world_size` is given.
        """
        return self._with(self.options.with_values(deterministic, memory_budget, epoch, rank_of(rank, world_size)))

    def _then(self, stage: Stage) -> Dataset[Any]:
        return replace(self, chain=Chain(self.chain.source, (*self.chain.stages, stage)))

    def _of(self, source: Source) -> Dataset[Any]:
        return replace(self, chain=Chain(source))


def check_dataset(name: str, dataset: Any) -> Chain:
    """The chain of an argument that must be a Dataset."""
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"{name} is {describe_value(dataset)}: a streamrec Dataset is wanted, such as TFRecordDataset(...)"
        )
    return dataset.chain


def _join(datasets: Iterable[Dataset[Any]], source: Source) -> Dataset[Any]:
    """What a source makes of several datasets, with the options that follow from theirs."""
    return Dataset(Chain(source), Options.of(dataset.options for dataset in datasets))


def _mix(datasets: Sequence[Dataset[Any]], choices: Chain, stop_on_empty: bool) -> Dataset[Any]:
    """Elements of several datasets, as choices say."""
    chains = tuple(check_dataset("datasets", dataset) for dataset in datasets)
    return _join(datasets, sources.Choose(chains, choices, flag("stop_on_empty_dataset", stop_on_empty)))


def in_memory(column: Any, origin: Positions) -> Dataset[Any]:
    """A dataset of the rows of a column; `origin` says what these were made of."""
    return Dataset(Chain(sources.Slices.holding(column, origin)))
