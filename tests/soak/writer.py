"""The process that `writing.py` kills: it writes three shards and a manifest, the same bytes for the same version."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from streamrec import RetryPolicy, ShardWriter

SHARD_BYTES = 17 << 20
RECORD_BYTES = 250_000
POLICY = RetryPolicy(  # patient with many faults, impatient with each: a stall costs two seconds
    attempts=20,
    backoff_base=0.02,
    backoff_cap=0.5,
    connect_timeout=1.0,
    first_byte_timeout=1.0,
    stall_timeout=2.0,
    complete_timeout=10.0,
    upload_rate=8 << 20,
)
RECORDS = 2 * (SHARD_BYTES // RECORD_BYTES) + 3


def records(version: int) -> Iterator[bytes]:
    source = np.random.default_rng(version)
    return (source.bytes(RECORD_BYTES) for _ in range(RECORDS))


async def write(url: str, options: Mapping[str, Any], version: int) -> None:
    writer = ShardWriter(
        f"{url}/train-{{shard:02d}}",
        max_shard_bytes=SHARD_BYTES,
        manifest=f"{url}/manifest.json",
        storage_options=options,
        retry=POLICY,
    )
    async with writer:
        for record in records(version):
            await writer.write(record)


def run_writer(begun: Connection, url: str, options: Mapping[str, Any], version: int) -> None:
    begun.send_bytes(b"begun")
    asyncio.run(write(url, options, version))
