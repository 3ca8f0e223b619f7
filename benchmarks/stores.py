"""Stores that the benchmarks read from and write to, and shards in them.

Stores have the last core, so that both sides of a comparison have the first one for themselves.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

import streamrec
from streamrec import Frames
from tests.servers.faults import Faults
from tests.servers.program import ServerProcess
from tests.servers.real import fake_gcs, nginx, seaweedfs

FAR = Faults(first_byte=0.03, jitter=0.02, rate=60e6)
"""A store that is far away: 30 to 50 ms to the first byte, 60 MB/s a connection."""

BLOCK = 8 << 20
REGION = "us-east-1"

Certificate = tuple[Path, Path]
Options = dict[str, Any]


@contextmanager
def last_core() -> Iterator[None]:
    """Processes that start in this block have the last core; so does the calling thread."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {(os.cpu_count() or 1) - 1})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def real(
    server: str, *, shards: int, size: int, record: int, certificate: Certificate | None = None
) -> Iterator[tuple[list[str], Options]]:
    """The URLs of shards in a real server on this machine, and the options of a client.

    Args:
        server: "s3" (SeaweedFS), "nginx" (as S3, without signatures) or "gcs" (fake-gcs-server).
        shards: How many.
        size: Bytes of each shard.
        record: Bytes of each record.
        certificate: For TLS.
    """
    with ExitStack() as stack:
        with last_core():
            if server == "nginx":
                store = stack.enter_context(nginx(certificate=certificate))
            elif server == "gcs":
                store = stack.enter_context(
                    fake_gcs("data", in_memory=False, certificate=certificate)
                )
            else:
                store = stack.enter_context(seaweedfs("data", certificate=certificate))
        options = dict(store.options)
        url, folder = store.url, f"{store.directory}/data"
        if server == "nginx":
            url, options = "s3://data", {"endpoint_url": store.endpoint, "anon": True}
        if server == "s3":
            asyncio.run(fill(url, options, shards=shards, size=size, record=record))
        else:
            asyncio.run(fill(folder, None, shards=shards, size=size, record=record))
        if server == "gcs":
            adopt(Path(folder))
        yield [f"{url}/{number:03d}.tfrecord" for number in range(shards)], options


@contextmanager
def simulated(
    root: Path, name: str, *, shards: int, size: int, faults: Faults, record: int = 110_000
) -> Iterator[tuple[list[str], Options]]:
    """The URLs of shards in a simulated store, and the options of a client.

    Args:
        root: The directory that the store serves.
        name: The bucket, a new directory of `root`.
        shards: How many: the same shard under so many names.
        size: Bytes of each shard.
        faults: How far away the store is, and what goes wrong.
        record: Bytes of each record; a shard that is shorter has one record.
    """
    bucket = root / name
    asyncio.run(fill(str(bucket), None, shards=1, size=size, record=min(record, size)))
    keys = [f"{name}/{number:05d}.tfrecord" for number in range(shards)]
    for key in keys:
        os.link(bucket / "000.tfrecord", root / key)
    (bucket / "000.tfrecord").unlink()
    try:
        with far_server(root, faults) as server:
            yield [f"s3://{key}" for key in keys], {"endpoint_url": server.url, "anon": True}
    finally:
        for path in bucket.iterdir():
            path.unlink()


@contextmanager
def far_server(root: Path | str, faults: Faults) -> Iterator[ServerProcess]:
    """A simulated store that serves a directory, in a process on the last core."""
    with ExitStack() as stack:
        with last_core():
            options = ("--root", str(root))
            server = stack.enter_context(
                ServerProcess("tests.servers.objectstore", options, faults)
            )
        yield server


async def fill(
    target: str, options: Options | None, *, shards: int, size: int, record: int
) -> None:
    """Writes shards of random bytes, in records of one length."""
    random = np.random.default_rng(1)
    starts = np.arange(BLOCK // record, dtype=np.int64) * record
    for number in range(shards):
        path = f"{target}/{number:03d}.tfrecord"
        async with streamrec.ShardWriter(path, storage_options=options) as writer:
            written = 0
            while written < size:
                count = min(len(starts), -(-(size - written) // (record + 16)))
                spans = np.stack([starts[:count], starts[:count] + record], axis=1)
                await writer.write_batch(Frames(random.bytes(BLOCK), spans))
                written += count * (record + 16)


def adopt(directory: Path) -> None:
    """Makes the files in a directory of fake-gcs-server objects of the server.

    It takes quadratic time for uploads: minutes a GB.
    """
    for path in directory.iterdir():
        checksum = google_crc32c.Checksum()
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                checksum.update(block)
        encoded = base64.b64encode(checksum.digest()).decode()
        about = {
            "ContentType": "application/octet-stream",
            "Crc32c": encoded,
            "Etag": encoded,
            "Generation": 1,
        }
        os.setxattr(path, "user.metadata", json.dumps(about).encode())
