"""How shards of a store are read: by the loop that a user of streamrec writes, and by the bare
clients.

Each reader returns how many bytes it read, and a checksum of the records where it is asked for one.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from typing import Any

import streamrec
from streamrec import Framer, Frames, kernels

BUDGET = 256 << 20
PARALLEL = 16

Options = dict[str, Any]
Read = tuple[int, int]


def by_streamrec(
    urls: Sequence[str],
    options: Options | None,
    *,
    batch: int,
    block: int = 1,
    check: bool = False,
    parallel: int = PARALLEL,
) -> Read:
    """The loop that a user writes: batches of records, of 16 shards in turn.

    Args:
        urls: The shards.
        options: Those of the client.
        batch: Records of a batch.
        block: Records that are taken from a shard before the next one's turn.
        check: Whether a checksum is wanted.
        parallel: Shards at a time.
    """
    dataset = streamrec.TFRecordDataset(
        list(urls), num_parallel_reads=parallel, block_length=block, storage_options=options
    )
    size = checksum = 0
    for frames in dataset.with_options(memory_budget=BUDGET).batch(batch):
        size += bytes_of(frames)
        checksum += checksum_of(frames) if check else 0
    return size, checksum


def bytes_of(frames: Frames) -> int:
    """The bytes of records in their shards: each has a head and a foot of 16 bytes in all."""
    return frames.nbytes + 16 * len(frames)


def checksum_of(frames: Frames) -> int:
    """A checksum of records that does not depend on their order."""
    return sum(kernels.crc32c(view) for view in frames.views())


def load_client(url: str) -> None:
    """Imports the client of a store, so that the import is not measured."""
    importlib.import_module("s3fs" if url.startswith("s3") else "gcsfs.core")


def by_bare_client(urls: Sequence[str], options: Options, *, check: bool = False) -> Read:
    """The streamed GETs of s3fs or gcsfs, 16 at a time; the bytes are dropped as they come."""
    return asyncio.run(bare(urls, options, check))


async def bare(urls: Sequence[str], options: Options, check: bool) -> Read:
    """The same, in a running event loop."""
    bodies = s3_bodies(options) if urls[0].startswith("s3") else gcs_bodies(options)
    opened = await anext(bodies)
    gate = asyncio.Semaphore(PARALLEL)

    async def read(url: str) -> Read:
        async with gate:
            framer = Framer()
            size = checksum = 0
            async for chunk in opened(url):
                size += len(chunk)
                if check:
                    checksum += checksum_of(framer.feed(chunk))
            return size, checksum

    results = await asyncio.gather(*map(read, urls))
    await bodies.aclose()
    return sum(size for size, _ in results), sum(checksum for _, checksum in results)


async def s3_bodies(options: Options) -> Any:
    """A generator of one function, which opens an object by s3fs and gives the chunks of its body.

    Without the retries of s3fs, and with as many connections as there are streams.
    """
    import s3fs

    config = {"max_pool_connections": 24, "response_checksum_validation": "when_required"}
    fs = s3fs.S3FileSystem(
        **options, asynchronous=True, skip_instance_cache=True, config_kwargs=config
    )
    await fs.set_session()

    async def body(url: str) -> Any:
        bucket, _, key = url.removeprefix("s3://").partition("/")
        answer = await fs._call_s3("get_object", Bucket=bucket, Key=key)
        async for chunk in answer["Body"].raw_stream.content.iter_any():
            yield chunk

    try:
        yield body
    finally:
        await fs._s3creator.__aexit__(None, None, None)


async def gcs_bodies(options: Options) -> Any:
    """The same by the session of gcsfs."""
    import gcsfs.core

    fs = gcsfs.core.GCSFileSystem(**options, asynchronous=True, skip_instance_cache=True)
    await fs._set_session()

    async def body(url: str) -> Any:
        where = fs.url(url)
        query = fs._get_params({})
        fields = fs._get_headers({})
        async with fs.session.get(where, params=query, headers=fields) as answer:
            answer.raise_for_status()
            async for chunk in answer.content.iter_any():
                yield chunk

    try:
        yield body
    finally:
        await fs.session.close()
