"""Where elements come from, but for shards: `Dataset.range`, `Dataset.from_tensor_slices` and their like, as chains.

`Dataset` has each of them as a static method, which makes a Dataset of the chain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from fsspec import AbstractFileSystem

from streamrec.arguments import flag, function, integer
from streamrec.pipeline import sources
from streamrec.pipeline.elements.specs import signature_of
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.engine.session import SourceStores
from streamrec.shards import Filenames
from streamrec.storage import RetryPolicy, check_source

__all__ = ["counter", "from_generator", "from_tensor_slices", "from_tensors", "list_files", "load", "random", "range_"]


def range_(*args: int, output_type: Any = np.int64) -> Chain:
    """The numbers of Python's `range(*args)`, as NumPy scalars of dtype `output_type`.

    Raises:
        ValueError: The step is 0.
        TypeError: Other than one to three arguments.

    Examples:
        >>> from streamrec import Dataset
        >>> [numbers.tolist() for numbers in Dataset.range(2, 9).batch(4)]
        [[2, 3, 4, 5], [6, 7, 8]]
    """
    return Chain(sources.Range.of(tuple(integer("range", number) for number in args), output_type))


def from_tensors(tensors: Any) -> Chain:
    """One element: an array, a list or a number, or dicts and tuples of them, as a whole. It is copied.

    Examples:
        >>> from streamrec import Dataset
        >>> list(Dataset.from_tensors(([1, 2], "a")))
        [(array([1, 2]), b'a')]
    """
    return Chain(sources.Slices.single(tensors))


def from_tensor_slices(tensors: Any) -> Chain:
    """The rows of an array, list, Frames, ragged or sparse tensor, or of several in dicts and tuples.

    They are copied, and arrays among the elements are read-only.

    Raises:
        TypeError: A part has no rows, or a value is masked, null or None.
        ValueError: The parts have different numbers of rows.

    Examples:
        >>> from streamrec import Dataset
        >>> list(Dataset.from_tensor_slices({"name": ["a", "b"]}))
        [{'name': b'a'}, {'name': b'b'}]
    """
    return Chain(sources.Slices.of(tensors))


def from_generator(
    generator: Callable[..., Any], args: tuple[Any, ...] | None = None, *, output_signature: Any = None
) -> Chain:
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
        TypeError: `output_signature` holds something else. When it runs: an element looks otherwise or is of a dtype
            that does not fit without loss; the message has its number.
        ValueError: When it runs: an element has another shape.

    Examples:
        >>> from streamrec import Dataset, TensorSpec
        >>> list(Dataset.from_generator(lambda stop: iter(range(stop)), (3,)))
        [0, 1, 2]
        >>> list(Dataset.from_generator(lambda: [1, 2], output_signature=TensorSpec([], "float32")))
        [np.float32(1.0), np.float32(2.0)]
    """
    signature = None if output_signature is None else signature_of(output_signature)
    return Chain(sources.Generated(function("generator", generator), tuple(args or ()), signature))


def list_files(
    file_pattern: Filenames,
    shuffle: bool | None = None,
    seed: int | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: AbstractFileSystem | None = None,
    retry: RetryPolicy | None = None,
) -> Chain:
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
    return Chain(sources.Names.of(file_pattern, wanted, integer("seed", seed, none=True), stores))


def counter(start: int = 0, step: int = 1, dtype: Any = np.int64) -> Chain:
    """The numbers `start`, `start + step`, ... without an end, as NumPy scalars.

    Examples:
        >>> from streamrec import Dataset
        >>> list(map(int, Dataset.counter(5, 10).take(3)))
        [5, 15, 25]
    """
    return Chain(sources.Counter(integer("start", start), integer("step", step), np.dtype(dtype).name))


def random(seed: int | None = None, rerandomize_each_iteration: bool | None = None) -> Chain:
    """Random numbers without an end: int64, from 0 to 2**32 - 1, all alike likely.

    Args:
        seed: Two runs with one seed draw the same; None for another one each run, which a saved state keeps.
        rerandomize_each_iteration: True for other numbers in each epoch; None or False for the same, as in tf.data.

    Examples:
        >>> from streamrec import Dataset
        >>> list(Dataset.random(seed=7).take(3)) == list(Dataset.random(seed=7).take(3))
        True
    """
    rerandomize = rerandomize_each_iteration is not None and flag(
        "rerandomize_each_iteration", rerandomize_each_iteration
    )
    return Chain(sources.Random(integer("seed", seed, none=True), rerandomize))


def load(
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: AbstractFileSystem | None = None,
    retry: RetryPolicy | None = None,
) -> Chain:
    """The elements that `Dataset.save(path)` wrote.

    Args:
        path: A path or URL; not TensorFlow's, whose files are of another format.
        storage_options, filesystem, retry: As for `TFRecordDataset`.

    Raises:
        NotFoundError: When it runs: the file does not exist.
        CacheError: When it runs: it is something else.
    """
    retry = check_source(storage_options, filesystem, retry)
    return Chain(sources.Saved(sources.CacheFile.at(os.fspath(path), storage_options, filesystem, retry, "load()")))
