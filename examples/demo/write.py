"""The writing half: writes images into shards on S3. job.py starts it in a separate process.

It reads a Job from standard input as JSON. It prints a line of JSON for each batch that it has
written, `{"bytes": ...}`, and one at the end of each set,
`{"set": ..., "shards": ..., "tally": ...}`. If the store fails, the last line describes the error,
`{"failed": ...}`: on standard error it would spoil the progress bar.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import streamrec
from examples.demo.data import batches
from examples.demo.job import HELD_OUT_SHARDS, Job
from examples.demo.records import Tally, encode


async def write(job: Job) -> None:
    """Writes both sets, and reports the progress on standard output."""
    await write_set(job, "train", job.shards, job.shard_records)
    await write_set(job, "test", HELD_OUT_SHARDS, job.held_out_records)


async def write_set(job: Job, name: str, shards: int, shard_records: int) -> None:
    """Writes one set into this number of shards. Each shard appears on S3 only when it is
    complete.
    """
    tally = Tally()
    images = batches(shards * shard_records, held_out=name == "test")
    writer = streamrec.ShardWriter(
        f"{job.url}/{name}-{{shard:05d}}.tfrecord",
        max_shard_records=shard_records,
        storage_options=job.storage_options,
        retry=streamrec.RetryPolicy(patience=10),
    )
    async with writer:
        # The images are drawn in a thread, so that the parts before them are uploaded meanwhile.
        while drawn := await asyncio.to_thread(next, images, None):
            records = encode(*drawn, first_id=tally.records)
            await writer.write_batch(records)
            before = tally.size
            tally.add(records)
            say({"bytes": tally.size - before})
    say({"set": name, "shards": len(writer.shards), "tally": asdict(tally)})


def say(line: Mapping[str, Any]) -> None:
    """Passes a line to the process that shows the progress."""
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(write(Job(**json.load(sys.stdin))))
    except streamrec.StreamrecError as error:
        say({"failed": str(error)})
        sys.exit(1)
