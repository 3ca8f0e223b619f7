"""The servers of the tests: each fault as a client meets it and the log tells it; the proxy before real servers."""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import random
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from http.client import IncompleteRead
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import gcsfs.core
import pytest
import s3fs
from botocore.exceptions import BotoCoreError, ClientError

from tests.servers.faults import NO_FAULTS
from tests.servers.objectstore import ObjectStore
from tests.servers.proxy import FaultProxy
from tests.servers.real import Store, _running
from tests.servers.requestlog import Entry

KEY = "/bucket/dir/key"
MEDIA = "/download/storage/v1/b/bucket/o/dir%2Fkey?alt=media"
RANGE = {"Range": "bytes=100000-199999"}
PARTS = (b"a" * (5 << 20), b"b" * (5 << 20), b"c" * 100_000)
FAILURES = (OSError, aiohttp.ClientError, BotoCoreError, ClientError)


class Answer(NamedTuple):
    """What came back: `body` holds what came before an error, too."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    error: Exception | None


def ask(
    url: str, target: str, headers: dict[str, str] | None = None, method: str = "GET", seconds: float = 30
) -> Answer:
    """One request on one connection, read to its end or to where it breaks off: no retry, no redirect."""
    with contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=seconds)) as connection:
        connection.request(method, target, headers=headers or {})
        response = connection.getresponse()
        body, missing, error = b"", response.length or 0, None
        try:
            while data := response.read1(1 << 16):  # read() would lose what came before an error
                body += data
            if len(body) < missing:  # read1 is silent about it
                error = IncompleteRead(body, missing - len(body))
        except (OSError, http.client.HTTPException) as caught:
            error = caught
        return Answer(response.status, response.headers, body, error)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every server that a test starts has ended with all of its threads when the test has."""
    yield
    names = ("objectstore", "faultproxy", "server")
    assert [thread for thread in threading.enumerate() if thread.name in names] == []


@pytest.fixture
def content() -> bytes:
    """The bytes of bucket/dir/key: enough for several segments of TCP."""
    return random.Random(1).randbytes(300_000)


@pytest.fixture
def store(tmp_path: Path, content: bytes) -> Iterator[ObjectStore]:
    """A store with one bucket, without faults."""
    (tmp_path / "bucket" / "dir").mkdir(parents=True)
    (tmp_path / "bucket" / "dir" / "key").write_bytes(content)
    with ObjectStore(tmp_path) as store:
        yield store


def last(store: ObjectStore) -> Entry:
    """The entry of the request that has just ended."""
    assert store.wait_idle()
    return store.log[-1]


TOLD = "bytes 100000-199999/300000"


@pytest.mark.parametrize(
    ("fault", "at", "headers", "told", "first", "end", "error"),
    [
        ("reset", 0.0, {}, None, 0, 0, ConnectionResetError),
        ("reset", 0.999999, {}, None, 0, 299_999, ConnectionResetError),
        ("reset", 0.5, RANGE, TOLD, 100_000, 150_000, ConnectionResetError),
        ("cut", 0.5, {}, None, 0, 150_000, IncompleteRead),
        ("stall", 0.5, {}, None, 0, 150_000, TimeoutError),
        ("truncate", 0.5, RANGE, TOLD, 100_000, 150_000, None),
        ("wrong_content_range", 0.5, RANGE, "bytes 150000-199999/300000", 150_000, 200_000, None),
        ("ignore_range", 0.5, RANGE, None, 0, 300_000, None),
    ],
)
def test_a_fault_and_an_honest_answer(
    store: ObjectStore,
    content: bytes,
    fault: str,
    at: float,
    headers: dict[str, str],
    told: str | None,
    first: int,
    end: int,
    error: type[Exception] | None,
) -> None:
    """All that precedes the place of the fault is delivered; the next answer is as it should be."""
    store.faults = replace(NO_FAULTS, script=(fault,), at=at)
    answer, entry = ask(store.url, KEY, headers, seconds=0.5 if fault == "stall" else 30), last(store)
    assert (answer.body, answer.headers["Content-Range"]) == (content[first:end], told)
    assert isinstance(answer.error, error) if error else answer.error is None
    assert (entry.fault, entry.sent) == (fault, end - first)
    honest = ask(store.url, KEY, headers)
    assert (honest.body, honest.error) == (content[100_000:200_000] if headers else content, None)
    assert last(store).fault == ""


def test_a_body_without_a_range_has_none_to_get_wrong(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, wrong_content_range=0.5, ignore_range=0.5)
    assert (ask(store.url, KEY).body, last(store).fault) == (content, "")


def test_corrupt(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, corrupt=1.0)
    answer = ask(store.url, KEY, RANGE)
    wanted = content[100_000:200_000]
    assert [a ^ b for a, b in zip(answer.body, wanted, strict=True) if a != b] == [0xFF]


def test_change(store: ObjectStore, content: bytes) -> None:
    etag = ask(store.url, KEY, method="HEAD").headers["ETag"]
    generation = json.loads(ask(store.url, "/storage/v1/b/bucket/o/dir%2Fkey").body)["generation"]
    store.faults = replace(NO_FAULTS, script=("change",))
    assert ask(store.url, KEY, {**RANGE, "If-Match": etag}).status == 412
    assert last(store).fault == "change"
    assert ask(store.url, KEY, {"If-Match": etag}).status == 412  # and so it stays
    assert ask(store.url, f"{MEDIA}&generation={generation}").status == 404
    new = ask(store.url, KEY)
    assert new.headers["ETag"] != etag
    assert len(new.body) == len(content)
    assert {a ^ b for a, b in zip(new.body, content, strict=True)} == {1}
    assert ask(store.url, KEY, {"If-Match": new.headers["ETag"]}).body == new.body
    assert new.headers["ETag"].encode() in ask(store.url, "/bucket?list-type=2").body.replace(b"&quot;", b'"')


@pytest.mark.parametrize("target", [KEY, MEDIA, "/bucket?list-type=2", "/storage/v1/b/bucket/o"])
def test_unavailable(store: ObjectStore, target: str) -> None:
    store.faults = replace(NO_FAULTS, unavailable=1.0)
    plain = ask(store.url, target)
    assert (plain.status, plain.headers["Retry-After"]) == (503, None)
    assert b"SlowDown" in plain.body or json.loads(plain.body)["error"]["code"] == 503
    store.faults = replace(NO_FAULTS, unavailable=1.0, retry_after=7)
    assert ask(store.url, target).headers["Retry-After"] == "7"
    assert ask(store.url, target, method="HEAD").body == b""
    assert store.wait_idle()
    assert store.counters.by_fault == {"unavailable": 3}


def test_bodies_that_crawl(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, rate=60e6, crawl=0.5, crawl_rate=9e6)
    for _ in range(20):
        assert ask(store.url, KEY).body == content
    assert store.wait_idle()
    assert {entry.rate for entry in store.log} == {60_000_000, 9_000_000}


def test_the_same_seed_gives_the_same_faults_again(store: ObjectStore) -> None:
    wet = replace(NO_FAULTS, seed=5, reset=0.3, cut=0.2, unavailable=0.2, corrupt=0.1)
    runs = []
    for faults in (wet, wet, replace(wet, seed=6)):
        store.faults = faults
        store.clear()
        bodies = [ask(store.url, KEY, RANGE).body for _ in range(30)]
        assert store.wait_idle()
        runs.append((bodies, [(entry.ordinal, entry.fault, entry.sent) for entry in store.log]))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert {fault for _, fault, _ in runs[0][1]} == {"", "reset", "cut", "unavailable", "corrupt"}


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


async def test_a_proxy_before_s3(s3_store: Store, prefix: str) -> None:
    """Signatures stay valid. An upload that is reset leaves no object; one whose answer is lost leaves it."""
    once = {"retries": {"total_max_attempts": 1, "mode": "standard"}}
    with FaultProxy(s3_store.endpoint) as proxy:
        options = {**s3_store.options, "endpoint_url": proxy.url}
        s3 = s3fs.S3FileSystem(**options, config_kwargs=once, asynchronous=True, skip_instance_cache=True)
        s3.retries = 1
        await s3.set_session()
        for fault in ("upload_reset", "lost_answer"):
            proxy.faults = replace(NO_FAULTS, script=(fault,), at=0.5)
            with pytest.raises(FAILURES):
                await s3._call_s3("put_object", Bucket="streamrec", Key=f"{prefix}/{fault}", Body=PARTS[0])
            proxy.faults = NO_FAULTS
            assert await s3._exists(f"streamrec/{prefix}/{fault}") is (fault == "lost_answer")
        assert await s3._cat_file(f"streamrec/{prefix}/lost_answer") == PARTS[0]
        assert proxy.wait_idle()
        broken = next(entry for entry in proxy.log if entry.fault == "upload_reset")
        assert 0 < broken.received < len(PARTS[0]) + 1000
        proxy.clear()
        await s3._pipe_file(f"streamrec/{prefix}/key", b"0123456789")
        proxy.faults = replace(NO_FAULTS, ignore_range=1.0)
        assert await s3._cat_file(f"streamrec/{prefix}/key", start=2, end=4) == b"23"  # a signed range is not ignored
        url = await s3._url(f"streamrec/{prefix}/key")  # presigned: the signature is in the query
        async with aiohttp.ClientSession() as session, session.get(url, headers={"Range": "bytes=2-3"}) as answer:
            assert (answer.status, await answer.read()) == (200, b"0123456789")
        assert proxy.wait_idle()
        assert proxy.counters.by_fault == {"ignore_range": 1}
        await s3._s3creator.__aexit__(None, None, None)


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


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork")
def test_a_server_ends_though_a_forked_process_holds_its_input() -> None:
    """As the worker processes of a DataLoader do: the pipe to the watchdog does not end when this process closes it."""
    context = multiprocessing.get_context("fork")
    released = context.Event()
    holder = context.Process(target=released.wait)
    with _running([sys.executable, "-c", "import signal; signal.pause()"], lambda: None) as (directory, _):
        assert directory.exists()
        holder.start()
    try:
        assert holder.is_alive()
        assert not directory.exists()
    finally:
        released.set()
        holder.join()
