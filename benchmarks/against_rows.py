"""What `benchmarks.against` measures: one row a function, with either version of the package.

A row uses public names of streamrec alone, and the harness nothing of it, so that versions years
apart run the same lines. A row prepares its work, and returns a function for one pass, which
returns how many bytes it read or wrote.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness.meter import Figures, Meter, cpu_seconds, peak_mb, pin

BUDGET = 256_000_000

Task = dict[str, Any]


def shards(task: Task, **how: Any) -> Any:
    """The dataset that a row reads. Local files are read, not mapped, where a version can do
    both.
    """
    import streamrec

    if "memory_map" in inspect.signature(streamrec.TFRecordDataset).parameters:
        how["memory_map"] = False
    how.setdefault("num_parallel_reads", 16)
    dataset = streamrec.TFRecordDataset(task["urls"], storage_options=task.get("options"), **how)
    return dataset.with_options(memory_budget=BUDGET)


def drain(batches: Iterable[Any]) -> int:
    """Takes all batches of records; returns the bytes of their shards."""
    return sum(frames.nbytes + 16 * len(frames) for frames in batches)


def read(task: Task) -> Callable[[], int]:
    """Batches of records from a store or from files."""
    return lambda: drain(shards(task).batch(task["batch"]))


def read_small(task: Task) -> Callable[[], int]:
    """Many small shards."""
    return lambda: drain(shards(task).batch(1000))


def first_batch(task: Task) -> Callable[[], int]:
    """A new process until its first batch; all that the process did counts."""
    return lambda: drain([next(iter(shards(task).batch(task["batch"])))])


def parse(task: Task) -> Callable[[], int]:
    """Forty features from records in memory."""
    import streamrec

    batches = list(shards(task).batch(1024))
    features = forty(streamrec)

    def run() -> int:
        for frames in batches:
            streamrec.parse_example(frames, features)
        return drain(batches)

    return run


def forty(streamrec: Any) -> dict[str, Any]:
    """Twenty numbers of each kind."""
    features = {
        f"int_feature_{index}": streamrec.FixedLenFeature([], "int64") for index in range(20)
    }
    return features | {
        f"float_feature_{index}": streamrec.FixedLenFeature([], "float32") for index in range(20)
    }


def pipeline_forty(task: Task) -> Callable[[], int]:
    """Shuffled, batched, parsed."""
    import streamrec

    batches = shards(task).shuffle(20_000, seed=1).batch(1024).parse_example(forty(streamrec))
    return lambda: sum(1 for _ in batches) and task["nbytes"]


def pipeline_images(task: Task) -> Callable[[], int]:
    """Shuffled, batched, parsed: byte strings of 110 kB."""
    import streamrec

    features = {
        "image": streamrec.FixedLenFeature([], "string"),
        "label": streamrec.FixedLenFeature([], "int64"),
    }
    batches = shards(task).shuffle(1000, seed=1).batch(32).parse_example(features)
    return lambda: sum(1 for _ in batches) and task["nbytes"]


def images(task: Task) -> Callable[[], int]:
    """JPEG images, decoded on one core."""
    import streamrec.images

    decode = streamrec.images.decode_jpeg
    features = {"image": streamrec.FixedLenFeature([], "string")}

    def pixels(batch: dict[str, Any]) -> Any:
        return decode(batch["image"])

    batches = shards(task).batch(16).parse_example(features).map(pixels)
    return lambda: sum(1 for _ in batches) and task["nbytes"]


def functions(task: Task) -> Callable[[], int]:
    """A user's function for each record."""
    mapped = shards(task, num_parallel_reads=1).map(len)
    return lambda: sum(length + 16 for length in mapped)


def upload(task: Task) -> Callable[[], int]:
    """Batches of records into one object of a store."""
    import streamrec

    batch = streamrec.Frames.of([os.urandom(task["record"])] * ((1 << 20) // task["record"]))
    count = task["nbytes"] // batch.nbytes

    async def write() -> int:
        # a free name: replacing one costs copies
        url = f"{task['urls'][0]}-{os.getpid()}-{time.monotonic_ns()}"
        async with streamrec.ShardWriter(url, storage_options=task["options"]) as writer:
            for _ in range(count):
                await writer.write_batch(batch)
        return sum(shard.bytes for shard in writer.shards)

    return lambda: asyncio.run(write())


def training(task: Task) -> Callable[[], int]:
    """A loop that holds the GIL for half of each step, next to a stream."""
    batches = shards(task).batch(32)

    def run() -> int:
        size = 0
        for frames in batches:
            state = 1
            for _ in range(50_000):
                state = (state * 48_271) % 0x7FFFFFFF
            size += frames.nbytes + 16 * len(frames)
        return size

    return run


ROWS: dict[str, Callable[[Task], Callable[[], int]]] = {
    row.__name__: row
    for row in (
        read,
        read_small,
        first_batch,
        parse,
        pipeline_forty,
        pipeline_images,
        images,
        functions,
        upload,
        training,
    )
}


def measured(row: str, task: Task) -> Figures:
    """One row: a pass that does not count, where the task asks for it, and `passes` that do.

    Returns:
        `mb_s` and `cpu_s_gb`, of a GB where the task is one batch, whose seconds count as they are;
        `peak_mb`.
    """
    pin()
    meter = Meter()
    warm = task.get("warm", True)
    with meter:
        run = ROWS[row](task)
        if warm:
            run()
            # A collection of all that was imported takes 60 ms, as much as half a pass. It came in
            # the third pass with one version and in the fifth with another, although both do the
            # same work.
            gc.collect()
            gc.freeze()
            meter.restart()
        size = sum(run() for _ in range(task.get("passes", 1)))
    if not warm:
        meter.cpu_seconds = cpu_seconds()  # what the imports took, too
    nbytes = 1_000_000_000 if task.get("one_batch") else size
    return {**meter.rates(nbytes), "peak_mb": peak_mb()}


def package() -> str:
    """Where this process imports streamrec from."""
    import streamrec

    return str(Path(streamrec.__file__).parent.parent)
