"""The sink: runs a pipeline to its end and writes its elements into shards: records as they are, dicts as Examples.

Rules:
- The elements are read ahead while shards are written, in the run's own budget. Uploads hold up to half of that in
  addition.
- When it returns or fails, no task, connection or unfinished upload of it is left.
- Records in one buffer, and dicts in columns, make no object each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import numpy as np
from fsspec import AbstractFileSystem

from streamrec import example
from streamrec.arguments import describe_value, flag, integer
from streamrec.example import BytesColumn
from streamrec.example.columns import CompositeTensor
from streamrec.pipeline.elements.chunk import Batches, Elements
from streamrec.pipeline.elements.columns import Columns
from streamrec.pipeline.engine.queue import ByteQueue, background, fill
from streamrec.pipeline.iterators import Run
from streamrec.shards import ShardInfo, ShardTarget
from streamrec.shards.manifest import FRAME_BYTES
from streamrec.shards.patterns import is_numbered
from streamrec.shards.shard_writer import ShardOutput
from streamrec.storage import Storages, locate
from streamrec.tfrecord import Frames, RecordBatch, TFRecordOptions, as_record

__all__ = ["SHARD_BYTES", "Encoder", "WriteProgress", "target_of", "write_shards"]


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """How far a `write` is.

    Attributes:
        records: Records written so far.
        bytes: What they take in the shards before these are compressed.
        shards: Shards that are finished.
    """

    records: int
    bytes: int
    shards: int


async def write_shards(
    run: Run,
    target: ShardTarget,
    storages: Storages,
    encoder: Encoder,
    callback: Callable[[WriteProgress], object] | None,
) -> tuple[ShardInfo, ...]:
    """Runs a pipeline to its end and writes its elements.

    Args:
        run: What is run.
        target: Where shards go.
        storages: Their stores; closed here.
        encoder: Makes records of elements.
        callback: Is called after each chunk, and at the end.

    Returns:
        The shards, in order.

    Raises:
        ValueError: The target wants more shards at once than fit the memory.
    """
    shards = ShardOutput(target, storages, **plan_uploads(run.memory_budget // 2, target.num_shards or 1))
    report = partial(notify, callback, shards)
    try:
        async with storages:
            try:
                records, nbytes = await take_all(run, shards, encoder, report)
                await shards.close()
            except BaseException as cause:
                with anyio.CancelScope(shield=True):
                    await shards.abort(cause)
                raise
    finally:
        run.telemetry.ends()
    report(records, nbytes)
    return tuple(shards.shards)


async def take_all(
    run: Run, shards: ShardOutput, encoder: Encoder, report: Callable[[int, int], None]
) -> tuple[int, int]:
    """Takes all chunks of a run and writes them; returns how many records these are, and what they take in shards."""
    telemetry, queue = run.telemetry, ByteQueue(run.queue_bytes)
    telemetry.queued = partial(getattr, queue, "held")
    records = nbytes = 0
    async with background() as tasks:
        tasks.start_soon(fill, queue, run.start())
        run.waits()
        while (chunk := await queue.get()) is not None:
            if chunk.error is not None:
                raise chunk.error
            run.takes(chunk, iter(()))
            made = encoder.frames(chunk.elements)
            blocks = (
                made if isinstance(chunk.elements, Frames | Batches) else await anyio.to_thread.run_sync(list, made)
            )
            for frames in blocks:
                await shards.write_batch(frames)
                records += len(frames)
                nbytes += frames.nbytes + FRAME_BYTES * len(frames)
            report(records, nbytes)
            run.waits()
    return records, nbytes


def notify(callback: Callable[[WriteProgress], object] | None, shards: ShardOutput, records: int, nbytes: int) -> None:
    """Reports how far it is."""
    if callback is not None:
        callback(WriteProgress(records, nbytes, len(shards.finished)))


PART_SIZE: Final = 8 << 20

SMALL_PART_SIZE: Final = 5 << 20
"""The least that S3 takes."""


def plan_uploads(memory: int, shards: int) -> dict[str, int]:
    """How shards that are written at the same time share memory, in bytes: arguments of `ShardOutput`.

    Raises:
        ValueError: They do not fit.

    >>> plan_uploads(256 << 20, 1), plan_uploads(128 << 20, 12)["part_size"]
    ({'at_once': 1, 'part_size': 8388608, 'parallel': 4}, 5242880)
    """
    parallel = min(4, memory // (shards * PART_SIZE) - 1)
    if parallel >= 1:
        return {"at_once": shards, "part_size": PART_SIZE, "parallel": parallel}
    needed = shards * 2 * SMALL_PART_SIZE
    if needed > memory and shards > 1:
        raise ValueError(
            f"num_shards={shards}: that many shards at once hold {needed:,} bytes, and a half of the memory "
            f"budget is {memory:,}: give max_shard_bytes or max_shard_records instead, fewer shards, or "
            f"with_options(memory_budget={2 * needed})"
        )
    return {"at_once": shards, "part_size": SMALL_PART_SIZE, "parallel": 1}


SHARD_BYTES: Final = 200_000_000
"""How large shards become where nothing else is said."""


def target_of(
    pattern: str | os.PathLike[str],
    options: TFRecordOptions | str | None,
    num_shards: int | None,
    max_shard_bytes: int | None,
    max_shard_records: int | None,
    overwrite: bool,
    manifest: str | os.PathLike[str] | None,
    filesystem: AbstractFileSystem | None,
) -> ShardTarget:
    """Where shards go; see `Dataset.write`."""
    limits: list[Any] = [
        integer("num_shards", num_shards, 1, none=True),
        integer("max_shard_bytes", max_shard_bytes, 1, none=True),
        integer("max_shard_records", max_shard_records, 1, none=True),
    ]
    url = locate(os.fspath(pattern), filesystem)
    if is_numbered(url) and limits == [None] * 3:
        limits[1] = SHARD_BYTES
    return ShardTarget(
        url,
        TFRecordOptions.of(options),
        flag("overwrite", overwrite),
        None if manifest is None else locate(os.fspath(manifest), filesystem),
        *limits,
    )


T = TypeVar("T")

AMBIGUOUS = (
    "a dict with arrays: say batched=False where each dict is one Example, batched=True where it is a batch of them "
    "in columns"
)
WANTED = "a record (bytes), a batch of records, or a dict of features is wanted; "


class Encoder:
    """Makes records of elements.

    Args:
        batched: Whether a dict is a batch of Examples in columns, or one Example; None: one, where all values are
            scalars, and else an error.
    """

    def __init__(self, batched: bool | None) -> None:
        self._batched = batched
        self._seen = 0

    def frames(self, elements: Elements) -> Iterator[Frames]:
        """The records of a chunk's elements, in order.

        Raises:
            TypeError: An element is neither a record nor a dict of features, or a dict that may be one or many.
            FeatureError: A value cannot be written as a feature.
        """
        if isinstance(elements, Frames):
            yield elements
        elif isinstance(elements, Batches):
            yield elements.frames
        elif isinstance(elements, Columns) and self._is_examples(elements.nest):
            yield self._examples_of(elements.nest)
        else:
            yield from self._one_by_one(elements)
            return
        self._seen += len(elements)

    def _is_examples(self, nest: Any) -> bool:
        """Whether rows of these columns are Examples, which can be written without taking them apart."""
        if not isinstance(nest, dict) or self._batched is True:
            return False
        return all(
            isinstance(column, Frames)
            or (isinstance(column, np.ndarray) and (column.ndim == 1 or self._batched is False))
            for column in nest.values()
        )

    def _one_by_one(self, elements: Iterable[Any]) -> Iterator[Frames]:
        """Elements that are objects; records that follow each other make one block."""
        block: list[bytes] = []
        for element in elements:
            found = self._records(element)
            if isinstance(found, bytes):
                block.append(found)
            else:
                if block:
                    yield Frames.of(block)
                    block = []
                yield found
            self._seen += 1
        if block:
            yield Frames.of(block)

    def _records(self, element: Any) -> bytes | Frames:
        """One element's record, or its records where it is a batch."""
        if isinstance(element, bytes | bytearray | memoryview):
            return as_record(element)
        if isinstance(element, Frames):
            return element
        if isinstance(element, BytesColumn) and len(element.shape) != 1:
            element = element.to_numpy()
        if isinstance(element, np.ndarray) and element.dtype == object:
            return self._strings(element)
        if isinstance(element, RecordBatch):
            return Frames(element.buffer, element.spans)
        if isinstance(element, Mapping):
            return self._examples(element)
        raise self._wrong(element)

    def _strings(self, array: np.ndarray[Any, Any]) -> bytes | Frames:
        """The records of an array of byte strings."""
        values = array.ravel().tolist()
        wrong = next((value for value in values if not isinstance(value, bytes)), None)
        if wrong is not None or array.ndim > 1:
            raise self._wrong(array if wrong is None else wrong)
        return Frames.of(values) if array.ndim else as_record(values[0])

    def _examples(self, features: Mapping[str, Any]) -> bytes | Frames:
        if self._batched:
            return self._examples_of(features)
        if self._batched is None and not all(map(is_scalar, features.values())):
            raise TypeError(f"{self._place} is {AMBIGUOUS}")
        return self._try_encode(example.encode_example, features)

    def _examples_of(self, columns: Mapping[str, Any]) -> Frames:
        made = self._try_encode(example.encode_examples, columns)
        return Frames(made.buffer, made.spans)

    def _try_encode(self, encode: Callable[[Mapping[str, Any]], T], features: Mapping[str, Any]) -> T:
        """What `encode` makes of them; its error says which element it was."""
        try:
            return encode(features)
        except Exception as error:
            error.add_note(f"in write: {self._place}")
            raise

    def _wrong(self, value: Any) -> TypeError:
        if isinstance(value, str):
            return TypeError(f"{self._place} is {describe_value(value)}: {WANTED}map it to one by .encode()")
        return TypeError(f"{self._place} is {describe_value(value)}: {WANTED}map it to one, as by serialize_tensor")

    @property
    def _place(self) -> str:
        return f"element {self._seen:,} of this run"


def is_scalar(value: Any) -> bool:
    """Whether a value is one number or string, and no list, array, tensor or column."""
    if isinstance(value, str | bytes | bytearray):
        return True
    return not isinstance(value, Sequence | Mapping | CompositeTensor) and not tuple(getattr(value, "shape", ()))
