"""The sink: runs a pipeline and writes its elements into shards.

Records are written unchanged, dicts as Examples.

Rules:
- Elements are read ahead while shards are written, within the run's budget. Uploads hold up to half
  of that as well.
- When it returns or fails, no task, connection or unfinished upload is left.
- Records in one buffer, and dicts in columns, are written without an object for each.
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
from streamrec.arguments import check_integer, check_overwrite, check_path, describe_value
from streamrec.example import BytesColumn
from streamrec.example.columns import CompositeTensor
from streamrec.pipeline.elements.chunk import Batches, Elements
from streamrec.pipeline.elements.columns import Columns
from streamrec.pipeline.engine.queue import ByteQueue, fill
from streamrec.pipeline.iterators import Run
from streamrec.shards import ShardInfo, ShardTarget
from streamrec.shards.manifest import FRAME_BYTES
from streamrec.shards.patterns import is_numbered
from streamrec.shards.shard_output import ShardOutput
from streamrec.storage import Overwrite, Storages, locate
from streamrec.storage.tasks import background
from streamrec.tfrecord import Frames, RecordBatch, TFRecordOptions, as_record


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """The progress of a `write`.

    Attributes:
        records: How many records were written.
        bytes: How many bytes they take in shards, before compression.
        shards: How many shards are finished.
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
    """Runs a pipeline and writes its elements; returns the shards, in order. Closes their stores.

    The callback is called after each chunk, and at the end.
    """
    share = run.ledger.set_aside("uploads", run.memory_budget // 2)
    uploads = plan_uploads(share.nbytes, target.num_shards or 1)
    shards = ShardOutput(target, storages, **uploads)

    def report(records: int, nbytes: int) -> None:
        if callback is not None:
            callback(WriteProgress(records, nbytes, len(shards.finished)))

    try:
        async with storages:
            try:
                records, nbytes = await take_all(run, shards, encoder, report)
                await shards.close()
            except BaseException as cause:
                # A cancellation, too: parts of an upload that is not aborted stay in the store.
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
    """Writes all chunks of a run; returns the number of records, and their bytes in shards."""
    queue = ByteQueue(run.queue_bytes)
    run.ledger.account.queued = partial(getattr, queue, "held")
    records = nbytes = 0
    async with background() as tasks:
        tasks.start_soon(fill, queue, run.start())
        run.telemetry.waits()
        while (chunk := await queue.get()) is not None:
            if chunk.error is not None:
                raise chunk.error
            run.telemetry.takes(chunk, iter(()))
            # Encoding would block the event loop, and with it the reading of the next chunk.
            blocks: Iterable[Frames] = encoder.frames(chunk.elements)
            if not isinstance(chunk.elements, Frames | Batches):
                blocks = await anyio.to_thread.run_sync(list, blocks)
            for frames in blocks:
                await shards.write_batch(frames)
                records += len(frames)
                nbytes += frames.nbytes + FRAME_BYTES * len(frames)
            report(records, nbytes)
            run.telemetry.waits()
    return records, nbytes


PART_SIZE: Final = 8 << 20

SMALL_PART_SIZE: Final = 5 << 20
"""The smallest part size of S3."""


def plan_uploads(memory: int, shards: int) -> dict[str, int]:
    """Divides memory, in bytes, among concurrent shards.

    Returns arguments of `ShardOutput`. Raises a ValueError if the shards do not fit.

    >>> plan_uploads(256 << 20, 1), plan_uploads(128 << 20, 12)["part_size"]
    ({'at_once': 1, 'part_size': 8388608, 'parallel': 4}, 5242880)
    """
    parallel = min(4, memory // (shards * PART_SIZE) - 1)
    if parallel >= 1:
        return {"at_once": shards, "part_size": PART_SIZE, "parallel": parallel}
    needed = shards * 2 * SMALL_PART_SIZE
    if needed > memory and shards > 1:
        raise ValueError(
            f"num_shards={shards}: that many shards at once hold {needed:,} bytes, but half of "
            f"the memory budget is only {memory:,}: pass max_shard_bytes or max_shard_records "
            f"instead, fewer shards, or with_options(memory_budget={2 * needed})"
        )
    return {"at_once": shards, "part_size": SMALL_PART_SIZE, "parallel": 1}


SHARD_BYTES: Final = 200_000_000
"""The default size of shards."""


def target_of(
    pattern: str | os.PathLike[str],
    options: TFRecordOptions | str | None,
    *,
    num_shards: int | None,
    max_shard_bytes: int | None,
    max_shard_records: int | None,
    overwrite: Overwrite,
    manifest: str | os.PathLike[str] | None,
    filesystem: AbstractFileSystem | None,
) -> ShardTarget:
    """The shards of the arguments of `Dataset.write`."""
    num_shards = check_integer("num_shards", num_shards, 1, none=True)
    max_shard_bytes = check_integer("max_shard_bytes", max_shard_bytes, 1, none=True)
    max_shard_records = check_integer("max_shard_records", max_shard_records, 1, none=True)
    url = locate(check_path("pattern", pattern), filesystem)
    unlimited = (num_shards, max_shard_bytes, max_shard_records) == (None, None, None)
    if unlimited and is_numbered(url):
        max_shard_bytes = SHARD_BYTES
    if manifest is not None:
        manifest = locate(check_path("manifest", manifest), filesystem)
    return ShardTarget(
        pattern=url,
        options=TFRecordOptions.of(options),
        overwrite=check_overwrite(overwrite),
        manifest=manifest,
        num_shards=num_shards,
        max_shard_bytes=max_shard_bytes,
        max_shard_records=max_shard_records,
    )


T = TypeVar("T")

AMBIGUOUS = (
    "a dict with arrays, which may be one Example or a batch in columns: pass batched=False if "
    "each dict is one Example, batched=True if it is a batch"
)
WANTED = "a record (bytes), a batch of records, or a dict of features is expected; "


class Encoder:
    """Makes records of elements.

    `batched` says whether a dict is a batch of Examples: see `Dataset.write`.
    """

    def __init__(self, batched: bool | None) -> None:
        self._batched = batched
        self._seen = 0

    def frames(self, elements: Elements) -> Iterator[Frames]:
        """The records of a chunk's elements, in order."""
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
        """Whether the rows of columns are Examples, which can be encoded together."""
        if not isinstance(nest, dict) or self._batched is True:
            return False
        return all(
            isinstance(column, Frames)
            or (isinstance(column, np.ndarray) and (column.ndim == 1 or self._batched is False))
            for column in nest.values()
        )

    def _one_by_one(self, elements: Iterable[Any]) -> Iterator[Frames]:
        """Encodes elements one by one; consecutive records make one block."""
        block: list[bytes] = []
        for element in elements:
            records = self._records(element)
            if isinstance(records, bytes):
                block.append(records)
            else:
                if block:
                    yield Frames.of(block)
                    block = []
                yield records
            self._seen += 1
        if block:
            yield Frames.of(block)

    def _records(self, element: Any) -> bytes | Frames:
        """The record of an element, or the records of a batch."""
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
        batch = self._try_encode(example.encode_examples, columns)
        return Frames(batch.buffer, batch.spans)

    def _try_encode(
        self, encode: Callable[[Mapping[str, Any]], T], features: Mapping[str, Any]
    ) -> T:
        """Calls `encode`, and adds the element's number to its errors."""
        try:
            return encode(features)
        except Exception as error:
            error.add_note(f"in write: {self._place}")
            raise

    def _wrong(self, value: Any) -> TypeError:
        if isinstance(value, str):
            return TypeError(
                f"{self._place} is {describe_value(value)}: {WANTED}map it to one by .encode()"
            )
        return TypeError(
            f"{self._place} is {describe_value(value)}: {WANTED}map it to one, as by "
            "serialize_tensor"
        )

    @property
    def _place(self) -> str:
        return f"element {self._seen:,} of this run"


def is_scalar(value: Any) -> bool:
    """Whether a value is a number or string, not a list, array, tensor or column."""
    if isinstance(value, str | bytes | bytearray):
        return True
    return not isinstance(value, Sequence | Mapping | CompositeTensor) and not tuple(
        getattr(value, "shape", ())
    )
