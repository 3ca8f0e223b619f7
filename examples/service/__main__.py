"""Starts a store, writes shards to it, and serves them until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

import streamrec
from examples.service.app import Settings
from examples.service.process import serving
from tests.servers.real import seaweedfs

RECORDS = 20_000


async def write(settings: Settings) -> None:
    """Writes some shards and their index."""
    pattern, options = f"{settings.url}/train-{{shard:05d}}.tfrecord", settings.storage_options
    writing = streamrec.ShardWriter(
        pattern, max_shard_records=5_000, index=settings.index, storage_options=options
    )
    async with writing as writer:
        for number in range(RECORDS):
            await writer.write(streamrec.encode_example({"id": number, "text": f"record {number}"}))


def main() -> None:
    """Serves until it is interrupted."""
    with seaweedfs() as store, tempfile.TemporaryDirectory() as folder:
        settings = Settings(f"{store.url}/served", store.options)
        asyncio.run(write(settings))
        with (
            serving(settings, Path(folder) / "log", port=8000) as running,
            contextlib.suppress(KeyboardInterrupt),
        ):
            print(f"{RECORDS} records at {running.url}; Ctrl-C ends it. In another terminal:")
            print(f"    curl {running.url}/records/17,3")
            print(f"    curl {running.url}/shards/train-00000.tfrecord | head -3")
            print(f"    python -m examples.service.load {running.url}")
            running.process.wait()


if __name__ == "__main__":
    main()
