"""The clients that people use, against the simulated store: they must take it for a real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import gcsfs.core
import pytest
import s3fs

from tests.servers.faults import NO_FAULTS
from tests.servers.objectstore import ObjectStore

ONCE = {"retries": {"total_max_attempts": 1, "mode": "standard"}}


@pytest.fixture
async def s3(store: ObjectStore) -> AsyncIterator[Any]:
    """s3fs on the test's loop, signing, without retries."""
    fs = s3fs.S3FileSystem(
        endpoint_url=store.url,
        key="testkey",
        secret="secretsecret",
        client_kwargs={"region_name": "us-east-1"},
        config_kwargs=ONCE,
        asynchronous=True,
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    fs.retries = 1
    await fs.set_session()
    yield fs
    await fs._s3creator.__aexit__(None, None, None)


@pytest.fixture
async def gcs(store: ObjectStore) -> AsyncIterator[Any]:
    """Gcsfs on the test's loop, anonymous."""
    fs = gcsfs.core.GCSFileSystem(
        endpoint_url=store.url,
        token="anon",
        project="p",
        asynchronous=True,
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    await fs._set_session()
    yield fs
    await fs.session.close()


@pytest.fixture
def many(root: Path) -> list[str]:
    """1,100 objects: more than a page holds."""
    (root / "many" / "dir").mkdir(parents=True)
    names = [f"many/dir/{n:04}" for n in range(1100)]
    for name in names:
        (root / name).write_bytes(b"x")
    return names


async def test_s3fs_reads(s3: Any, content: bytes) -> None:
    assert await s3._cat_file("bucket/dir/key") == content
    assert await s3._cat_file("bucket/dir/key", start=10, end=20) == content[10:20]
    assert await s3._cat_file("bucket/dir/key", start=-10) == content[-10:]
    answer = await s3._call_s3("get_object", Bucket="bucket", Key="dir/key", Range="bytes=5-")
    assert await answer["Body"].read() == content[5:]
    info = await s3._info("bucket/dir/key")
    assert (info["size"], info["type"], info["ETag"]) == (len(content), "file", answer["ETag"])


async def test_s3fs_finds(s3: Any, many: list[str]) -> None:
    assert await s3._find("many") == many
    assert await s3._ls("bucket", detail=False) == ["bucket/dir", "bucket/empty"]
    assert await s3._glob("many/dir/000*") == many[:10]
    assert not await s3._exists("bucket/nothing")
    with pytest.raises(FileNotFoundError):
        await s3._cat_file("bucket/nothing", start=0, end=1)
    with pytest.raises(FileNotFoundError):
        await s3._ls("nothing")


async def test_s3fs_meets_faults(s3: Any, store: ObjectStore) -> None:
    etag = (await s3._info("bucket/dir/key"))["ETag"]
    store.faults = replace(NO_FAULTS, change=1.0)
    with pytest.raises(Exception, match=r"PreconditionFailed|pre-conditions|preconditions"):
        await s3._call_s3("get_object", Bucket="bucket", Key="dir/key", IfMatch=etag)
    store.faults = replace(NO_FAULTS, unavailable=1.0)
    with pytest.raises(Exception, match="reduce your request rate"):
        await s3._call_s3("get_object", Bucket="bucket", Key="dir/key")
    store.faults = replace(NO_FAULTS, reset=1.0, at=0.5)
    answer = await s3._call_s3("get_object", Bucket="bucket", Key="dir/key")
    with pytest.raises(aiohttp.ClientPayloadError):
        await answer["Body"].read()
    answer["Body"].close()


async def test_gcsfs_reads(gcs: Any, content: bytes) -> None:
    assert await gcs._cat_file("bucket/dir/key") == content
    assert await gcs._cat_file("bucket/dir/key", start=10, end=20) == content[10:20]
    info = await gcs._info("bucket/dir/key")
    assert (info["size"], info["type"]) == (len(content), "file")
    url = gcs.url("bucket/dir/key", generation=info["generation"])
    async with gcs.session.get(url, headers={"Range": "bytes=5-"}) as answer:
        assert answer.status == 206
        assert await answer.read() == content[5:]
    async with gcs.session.get(gcs.url("bucket/dir/key", generation="1")) as answer:
        assert answer.status == 404


async def test_gcsfs_finds(gcs: Any, many: list[str]) -> None:
    assert await gcs._find("many") == many
    assert await gcs._ls("bucket", detail=False) == ["bucket/dir", "bucket/empty"]
    assert not await gcs._exists("bucket/nothing")
    with pytest.raises(FileNotFoundError):
        await gcs._cat_file("bucket/nothing")


async def test_gcsfs_meets_faults(gcs: Any, store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, script=("reset",), at=0.5)
    async with gcs.session.get(gcs.url("bucket/dir/key")) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    assert await gcs._cat_file("bucket/dir/key") == content


async def test_many_connections_at_once(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, script=("stall",) * 32, at=0.5)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        answers = await asyncio.gather(*(session.get(f"{store.url}/bucket/dir/key") for _ in range(32)))
        assert (store.counters.in_flight, store.counters.connections) == (32, 32)
        bodies = await asyncio.gather(*(answer.content.readexactly(150_000) for answer in answers))
        assert set(bodies) == {content[:150_000]}
        async with session.get(f"{store.url}/bucket/dir/key") as answer:
            assert await answer.read() == content
        for stalled in answers:
            stalled.close()
