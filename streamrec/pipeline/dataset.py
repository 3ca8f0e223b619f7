"""Dataset: what a user holds. A frozen description with tf.data's verbs; iterating runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from fsspec import AbstractFileSystem

from streamrec.pipeline.description import MEMORY_BUDGET, Chain, Prefetch, Repeat, lines
from streamrec.pipeline.interleave import Plan
from streamrec.pipeline.iterators import (
    AsyncDatasetIterator,
    DatasetIterator,
    Run,
    ThreadedAsyncIterator,
)
from streamrec.pipeline.source import Shards
from streamrec.pipeline.stages import Batch, Map, Stage, Take
from streamrec.shards import Filenames, ReadOptions
from streamrec.shards.patterns import listed
from streamrec.storage import RetryPolicy
from streamrec.tfrecord import MAX_RECORD_BYTES, Loss

__all__ = ["Dataset", "TFRecordDataset"]

T = TypeVar("T", covariant=True)

PREFETCH_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Dataset(Generic[T]):
    """Elements that come from somewhere and go through stages; nothing runs before it is iterated.

    Iterate it with `for` (the fetching then goes on beside the loop, on one background thread of the process) or
    with `async for` (on the caller's own loop). Each iteration is a run of its own. A Dataset is a value: it
    can be pickled, compared, and iterated as often as one likes.

    Args:
        chain: The source and the stages; made by `TFRecordDataset` and the methods below.
        memory_budget: Bytes that one run may hold: what is being fetched, waits its turn, or waits for the consumer.
    """

    chain: Chain
    memory_budget: int = MEMORY_BUDGET

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset[Any]:
        """Joins each `batch_size` elements in one; the last batch may be smaller unless `drop_remainder`.

        A batch of records is a `Frames`. A batch of arrays or numbers is an array with one more dimension,
        `bytes` that a stage made become an object array, and dicts and tuples are batched part by part.
        """
        return self._then(Batch(batch_size, drop_remainder))

    def map(self, function: Callable[[Any], Any]) -> Dataset[Any]:
        """Calls `function` for each element, in order, in a thread beside the fetching."""
        return self._then(Map(function))

    def take(self, count: int) -> Dataset[T]:
        """The first `count` elements; -1 for all. What is not taken is not fetched."""
        return self._then(Take(count))

    def repeat(self, count: int | None = None) -> Dataset[T]:
        """All elements `count` times over; None or -1 for ever."""
        return self._of(Repeat(self.chain, -1 if count is None else count))

    def prefetch(self, buffer_bytes: int | None = None) -> Dataset[T]:
        """Lets what stands before this run ahead of what stands behind it, by `buffer_bytes` (default 64 MiB).

        tf.data counts elements here; streamrec counts bytes, because bytes are what memory ends at.
        """
        return self._of(Prefetch(self.chain, PREFETCH_BYTES if buffer_bytes is None else buffer_bytes))

    def with_options(self, *, memory_budget: int) -> Dataset[T]:
        """The same elements within another memory budget, in bytes."""
        return replace(self, memory_budget=memory_budget)

    def iterate(self, state: Mapping[str, Any] | None = None) -> DatasetIterator[T]:
        """A run for a `for` loop, from the start or from where a saved `state_dict()` stood.

        Raises:
            PositionMismatchError: The state was saved by another pipeline.
        """
        return DatasetIterator(Run(self.chain, self.memory_budget, state))

    def aiterate(self, state: Mapping[str, Any] | None = None) -> AsyncDatasetIterator[T] | ThreadedAsyncIterator[T]:
        """A run for an `async for` loop, likewise; call it where a loop is running."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return ThreadedAsyncIterator(self.iterate(state))
        return AsyncDatasetIterator(Run(self.chain, self.memory_budget, state))

    def __iter__(self) -> Iterator[T]:
        return self.iterate()

    def __aiter__(self) -> AsyncIterator[T]:
        return self.aiterate()

    def __repr__(self) -> str:
        return f"<Dataset: {' > '.join(lines(self.chain))}>"

    def _then(self, stage: Stage) -> Dataset[Any]:
        return replace(self, chain=Chain(self.chain.source, (*self.chain.stages, stage)))

    def _of(self, source: Repeat | Prefetch) -> Dataset[Any]:
        return replace(self, chain=Chain(source))


def TFRecordDataset(  # noqa: N802 - TensorFlow's name, so that a user changes the import and nothing else
    filenames: Filenames,
    compression_type: str | None = None,
    buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
    *,
    cycle_length: int | None = None,
    block_length: int = 1,
    deterministic: bool = True,
    verify: bool = True,
    on_error: str = "raise",
    max_skipped: int | None = None,
    on_loss: Callable[[Loss], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: AbstractFileSystem | None = None,
    retry: RetryPolicy | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> Dataset[bytes]:
    """The records of TFRecord shards, wherever they lie.

    Args:
        filenames: A URL or path, a pattern (`gs://b/train-*.tfrecord`, `{00000..00127}`), or a list of them.
        compression_type: None to detect (TensorFlow's None means none); "", "GZIP", "ZLIB" or "ZSTD".
        buffer_size: Bytes of a shard that are framed at a time; None for what its storage does best.
        num_parallel_reads: How many shards are interleaved, in TensorFlow's order; None for one after the other.
        cycle_length: The same under `interleave`'s name.
        block_length: Records from one shard before the next has its turn.
        deterministic: False to take whatever arrives first, a block at a time.
        verify: Check each record's CRC32C; the lengths' are always checked.
        on_error: What is done about damage in a shard: "raise", "skip_record", "resync" or "skip_shard"; see
            `open_shard`. A run that is resumed leaves out the same again.
        max_skipped: How many losses of one shard are borne before the next one is an error; None for any number.
        on_loss: Called with each Loss, on the thread that fetches: it must not block. Losses are also logged.
        storage_options: Passed to the fsspec filesystem (credentials, endpoint).
        filesystem: Your own fsspec filesystem, instead of one made from `storage_options`.
        retry: What happens when the network fails; see RetryPolicy.
        max_record_bytes: A longer record is taken for corruption; default 1 GiB.

    Returns:
        A Dataset of `bytes`; `.batch(n)` of it gives `Frames`, which parse without an object per record.

    Raises:
        ValueError: An argument is out of its range. (What is wrong with the files shows when it is iterated.)
    """
    shards = Shards(
        tuple(listed(filenames)),
        Plan(cycle_length or num_parallel_reads or 1, block_length, deterministic),
        ReadOptions(compression_type, verify, max_record_bytes, buffer_size, on_error, max_skipped, on_loss),
        storage_options,
        filesystem,
        retry or RetryPolicy(),
    )
    return Dataset(Chain(shards))
