"""The sink's driver: runs a pipeline to its end, and writes what comes into shards.

Rules:
- What precedes is read ahead while shards are written, in the run's own budget. Uploads hold as much as half of that
  beside it.
- When it returns, or fails, no task, connection or unfinished upload of it is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio

from streamrec.pipeline.elements.chunk import Batches, Chunk
from streamrec.pipeline.engine.background_tasks import background
from streamrec.pipeline.engine.iteration import Run
from streamrec.pipeline.engine.queue import ByteQueue, fill
from streamrec.pipeline.engine.run import started
from streamrec.pipeline.iterators import counted
from streamrec.pipeline.sink.records import Encoder
from streamrec.shards import ShardInfo, ShardSet, ShardTarget
from streamrec.storage import Storages
from streamrec.tfrecord import Frames

__all__ = ["WriteProgress", "write_shards"]


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
    """
    report = partial(notify, callback)
    shards = ShardSet(target, storages, run.memory_budget // 2)
    try:
        async with shards:
            await take_all(run, shards, encoder, report)
    finally:
        run.telemetry.ends()
    report(shards)
    return shards.shards


async def take_all(run: Run, shards: ShardSet, encoder: Encoder, report: Callable[[ShardSet], None]) -> None:
    """Takes all chunks of a run and writes them."""
    telemetry, queue = run.telemetry, ByteQueue(run.queue_bytes)
    telemetry.queued = partial(getattr, queue, "held")
    chunks = started(run.chain, run.position, run.options, telemetry.root)
    async with background() as tasks:
        tasks.start_soon(counted, telemetry, fill, queue, chunks)
        telemetry.waits()
        while (chunk := await queue.get()) is not None:
            if chunk.error is not None:
                raise chunk.error
            telemetry.takes(chunk, iter(()))
            await write_chunk(chunk, run, shards, encoder)
            report(shards)
            telemetry.waits()


async def write_chunk(chunk: Chunk, run: Run, shards: ShardSet, encoder: Encoder) -> None:
    """Writes one chunk."""
    made = encoder.frames(chunk.elements)
    blocks = made if isinstance(chunk.elements, Frames | Batches) else await anyio.to_thread.run_sync(list, made)
    for frames in blocks:
        await shards.write(frames)


def notify(callback: Callable[[WriteProgress], object] | None, shards: ShardSet) -> None:
    """Tells how far it is."""
    if callback is not None:
        callback(WriteProgress(shards.records, shards.bytes, len(shards.finished)))
