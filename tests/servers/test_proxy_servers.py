"""The proxy before real servers: signatures stay valid, uploads pass, and faults strike both ways."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import aiohttp
import gcsfs.core
import pytest
import s3fs
from botocore.exceptions import BotoCoreError, ClientError

from tests.servers.faults import NO_FAULTS
from tests.servers.proxy import FaultProxy
from tests.servers.real import Store

PARTS = (b"a" * (5 << 20), b"b" * (5 << 20), b"c" * 100_000)
FAILURES = (OSError, aiohttp.ClientError, BotoCoreError, ClientError)


@pytest.fixture
def s3_proxy(s3_store: Store) -> Iterator[FaultProxy]:
    """A proxy before SeaweedFS."""
    with FaultProxy(s3_store.endpoint) as proxy:
        yield proxy


@pytest.fixture
async def s3(s3_store: Store, s3_proxy: FaultProxy) -> AsyncIterator[Any]:
    """s3fs through the proxy, signing, without retries."""
    options = {**s3_store.options, "endpoint_url": s3_proxy.url}
    once = {"retries": {"total_max_attempts": 1, "mode": "standard"}}
    fs = s3fs.S3FileSystem(**options, config_kwargs=once, asynchronous=True, skip_instance_cache=True)
    fs.retries = 1
    await fs.set_session()
    yield fs
    await fs._s3creator.__aexit__(None, None, None)


@pytest.fixture
def gcs_proxy(gcs_store: Store) -> Iterator[FaultProxy]:
    """A proxy before fake-gcs-server."""
    with FaultProxy(gcs_store.endpoint) as proxy:
        yield proxy


@pytest.fixture
async def gcs(gcs_store: Store, gcs_proxy: FaultProxy) -> AsyncIterator[Any]:
    """A gcsfs through the proxy."""
    options = {**gcs_store.options, "endpoint_url": gcs_proxy.url}
    fs = gcsfs.core.GCSFileSystem(**options, asynchronous=True, skip_instance_cache=True)
    await fs._set_session()
    yield fs
    await fs.session.close()


@pytest.fixture
def prefix() -> str:
    """A place of this test's own in the bucket of the whole run."""
    return f"proxy-{uuid.uuid4().hex}"


async def upload(s3: Any, key: str) -> None:
    """Uploads PARTS as one object, out of order."""
    place = {"Bucket": "streamrec", "Key": key}
    made = await s3._call_s3("create_multipart_upload", **place)
    parts = []
    for number in (2, 3, 1):
        part = {"UploadId": made["UploadId"], "PartNumber": number, "Body": PARTS[number - 1], **place}
        parts.append({"PartNumber": number, "ETag": (await s3._call_s3("upload_part", **part))["ETag"]})
    ordered = {"Parts": sorted(parts, key=lambda part: part["PartNumber"])}
    await s3._call_s3("complete_multipart_upload", UploadId=made["UploadId"], MultipartUpload=ordered, **place)


async def test_s3_multipart_and_list(s3: Any, s3_proxy: FaultProxy, prefix: str) -> None:
    await upload(s3, f"{prefix}/multi")
    await s3._pipe_file(f"streamrec/{prefix}/small", b"xyz")
    assert await s3._cat_file(f"streamrec/{prefix}/multi") == b"".join(PARTS)
    assert await s3._cat_file(f"streamrec/{prefix}/multi", start=-3) == b"ccc"
    assert await s3._ls(f"streamrec/{prefix}", detail=False) == [
        f"streamrec/{prefix}/multi",
        f"streamrec/{prefix}/small",
    ]
    assert s3_proxy.wait_idle()
    assert s3_proxy.counters.by_fault == {}
    assert s3_proxy.counters.received > sum(map(len, PARTS))


async def test_s3_upload_resets_leave_no_object(s3: Any, s3_proxy: FaultProxy, prefix: str) -> None:
    s3_proxy.faults = replace(NO_FAULTS, upload_reset=1.0, at=0.5)
    with pytest.raises(FAILURES):
        await s3._call_s3("put_object", Bucket="streamrec", Key=f"{prefix}/broken", Body=PARTS[0])
    s3_proxy.faults = NO_FAULTS
    assert not await s3._exists(f"streamrec/{prefix}/broken")
    assert s3_proxy.wait_idle()
    broken = next(entry for entry in s3_proxy.log if entry.fault == "upload_reset")
    assert 0 < broken.received < len(PARTS[0]) + 1000


async def test_s3_answers_get_lost_after_the_deed(s3: Any, s3_proxy: FaultProxy, prefix: str) -> None:
    s3_proxy.faults = replace(NO_FAULTS, lost_answer=1.0)
    with pytest.raises(FAILURES):
        await s3._call_s3("put_object", Bucket="streamrec", Key=f"{prefix}/lost", Body=b"done")
    s3_proxy.faults = NO_FAULTS
    assert await s3._cat_file(f"streamrec/{prefix}/lost") == b"done"


async def test_s3_a_signed_range_is_not_ignored(s3: Any, s3_proxy: FaultProxy, prefix: str) -> None:
    await s3._pipe_file(f"streamrec/{prefix}/key", b"0123456789")
    s3_proxy.faults = replace(NO_FAULTS, ignore_range=1.0)
    assert await s3._cat_file(f"streamrec/{prefix}/key", start=2, end=4) == b"23"
    url = await s3._url(f"streamrec/{prefix}/key")  # presigned: the signature is in the query
    async with aiohttp.ClientSession() as session, session.get(url, headers={"Range": "bytes=2-3"}) as answer:
        assert (answer.status, await answer.read()) == (200, b"0123456789")
    assert s3_proxy.wait_idle()
    assert s3_proxy.counters.by_fault == {"ignore_range": 1}


async def test_gcs_resumable_upload_and_list(gcs: Any, gcs_proxy: FaultProxy, prefix: str) -> None:
    whole = b"".join(PARTS)
    await gcs._pipe_file(f"streamrec/{prefix}/big", whole, chunksize=1 << 20)
    await gcs._pipe_file(f"streamrec/{prefix}/small", b"xyz")
    assert await gcs._cat_file(f"streamrec/{prefix}/big") == whole
    assert await gcs._cat_file(f"streamrec/{prefix}/big", start=1, end=9) == b"a" * 8
    assert await gcs._ls(f"streamrec/{prefix}", detail=False) == [
        f"streamrec/{prefix}/big",
        f"streamrec/{prefix}/small",
    ]
    assert gcs_proxy.wait_idle()
    assert gcs_proxy.counters.received > len(whole)  # every chunk of the upload went through the proxy


@pytest.mark.parametrize("fault", ["unavailable", "upload_reset", "lost_answer"])
async def test_gcs_a_resumable_upload_goes_on_where_the_proxy_says(
    gcs: Any, gcs_proxy: FaultProxy, prefix: str, fault: str
) -> None:
    url = f"{gcs_proxy.url}/upload/storage/v1/b/streamrec/o"
    async with gcs.session.post(url, params={"uploadType": "resumable", "name": f"{prefix}/key"}, json={}) as answer:
        session = answer.headers["Location"]
    halves = PARTS[0][: 256 << 10], PARTS[1][: 256 << 10]
    gcs_proxy.faults = replace(NO_FAULTS, script=(fault,), at=0.5)
    span = {"Content-Range": f"bytes 0-{len(halves[0]) - 1}/*"}
    with contextlib.suppress(aiohttp.ClientError):
        async with gcs.session.post(session, data=halves[0], headers=span) as answer:
            assert answer.status == 503
    async with gcs.session.post(session, headers={"Content-Range": "bytes */*"}) as answer:
        assert answer.status == 308
        there = int(answer.headers.get("Range", "bytes=0--1").rpartition("0-")[2]) + 1
    assert there == (len(halves[0]) if fault == "lost_answer" else 0)
    data = b"".join(halves)
    span = {"Content-Range": f"bytes {there}-{len(data) - 1}/{len(data)}"}
    async with gcs.session.post(session, data=data[there:], headers=span) as answer:
        assert answer.status == 200
    assert await gcs._cat_file(f"streamrec/{prefix}/key") == data


@pytest.mark.parametrize("fault", ["reset", "cut", "truncate", "corrupt", "ignore_range"])
async def test_gcs_bodies_suffer(gcs: Any, gcs_proxy: FaultProxy, prefix: str, fault: str) -> None:
    await gcs._pipe_file(f"streamrec/{prefix}/key", PARTS[2])
    gcs_proxy.faults = replace(NO_FAULTS, script=(fault,), at=0.5)
    url, headers = gcs.url(f"streamrec/{prefix}/key"), {"Range": "bytes=10-99999"}
    async with gcs.session.get(url, headers=headers) as answer:
        if fault in ("reset", "cut"):
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        else:
            assert await answer.read() != PARTS[2][10:]
    assert gcs_proxy.wait_idle()
    assert gcs_proxy.counters.by_fault == {fault: 1}
    async with gcs.session.get(url, headers=headers) as answer:
        assert await answer.read() == PARTS[2][10:]
