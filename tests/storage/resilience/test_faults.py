"""Network faults: reading and writing over connections that break, stall and lie. Ours is the only
retry layer.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from streamrec.errors import (
    NotFoundError,
    ObjectChangedError,
    PermissionDeniedError,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
)
from streamrec.storage import RetryPolicy
from tests.servers.real import Store
from tests.storage.contract import read_all
from tests.storage.faultproxy import Fault, Request, status
from tests.storage.network import Network, through

DATA = os.urandom(3_000_001)  # long enough that bodies land, short enough that their ends do not
POLICY = RetryPolicy(
    attempts=3,
    backoff_base=0.01,
    connect_timeout=30,
    first_byte_timeout=30,
    stall_timeout=30,
    hedge_share=0,
)
"""Requests are counted: on a machine with much else to do, one may take seconds."""


@asynccontextmanager
async def through_a_proxy(store: Store, policy: RetryPolicy = POLICY) -> AsyncIterator[Network]:
    async with through(store, policy) as network:
        await network.put(DATA)
        yield network


@pytest.fixture(params=["s3_store", "gcs_store", "http_store"])
def store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def network(store: Store) -> AsyncIterator[Network]:
    async with through_a_proxy(store) as network:
        yield network


@pytest.mark.parametrize("start", [0, 10])
async def test_a_broken_body_continues_where_it_broke(network: Network, start: int) -> None:
    network.meets(Fault(cut=300_000), Fault(cut=0), Fault(cut=1), Fault(cut=500_000))
    stream = await network.storage.stream(network.path, start)
    assert await read_all(stream) == DATA[start:]
    starts = [
        int(text.removeprefix("bytes=").split("-")[0] or 0) - start
        for text in network.proxy.ranges()
    ]
    assert len(starts) == 5
    assert starts == sorted(starts)
    assert starts[0] == 0 < starts[1] <= 300_000  # less if the broken connection lost bytes
    assert starts[2] == starts[1]
    assert starts[4] > starts[3]
    pins = [
        r.headers.get("if-match") or "generation=" in r.path
        for r in network.proxy.log
        if r.method == "GET"
    ]
    assert all(pins[1:])


async def test_without_progress_it_ends_after_its_attempts(network: Network) -> None:
    network.meets(Fault(cut=500_000), then=Fault(cut=0))
    stream = await network.storage.stream(network.path)
    buffer = memoryview(bytearray(1 << 20))
    with pytest.raises(StorageError, match="3 attempts in a row") as caught:
        while await stream.readinto(buffer):
            pass
    assert stream.position == caught.value.offset
    assert stream.position <= 500_000
    assert caught.value.path == network.path
    assert len(network.proxy.ranges()) == POLICY.attempts


async def test_retry_after_is_honoured(network: Network) -> None:
    network.meets(status("503 Slow Down", "Retry-After: 1"))
    began = time.monotonic()
    assert await network.read() == DATA
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("401 No", PermissionDeniedError),
        ("403 No", PermissionDeniedError),
        ("404 No", NotFoundError),
        ("400 No", StorageError),
    ],
)
async def test_a_refusal_that_does_not_pass_is_not_retried(
    network: Network, line: str, error: type[StorageError]
) -> None:
    network.proxy.choose = lambda request: status(line)
    for verb in (network.storage.stream, network.storage.stat):
        network.proxy.log.clear()
        with pytest.raises(error):
            await verb(network.path)
        first, *others = network.proxy.log
        assert not others or (line, first.method) == ("400 No", "HEAD"), (
            "only botocore asks for the bucket's region"
        )


async def test_a_stalled_body_is_resumed_by_another_request(store: Store) -> None:
    async with through_a_proxy(store, replace(POLICY, stall_timeout=0.3)) as network:
        network.meets(Fault(stall=400_000), Fault(stall=0))
        assert await network.read() == DATA


async def test_an_answer_that_never_comes(store: Store) -> None:
    async with through_a_proxy(
        store, replace(POLICY, connect_timeout=0.3, first_byte_timeout=0.2)
    ) as network:
        network.meets(then=Fault(answer=b"HTTP/1.1 "))
        with pytest.raises(StorageError):
            await network.read()
        network.meets(then=Fault(stall=0, head=lambda head: b""))
        with pytest.raises(StorageTimeoutError):
            await network.read()
        assert len(network.proxy.ranges()) == POLICY.attempts


async def test_wrong_ranges_never_reach_the_caller(network: Network) -> None:
    def shift(head: bytes) -> bytes:
        return head.replace(b"bytes 10-", b"bytes 11-")

    network.meets(then=Fault(head=shift))
    with pytest.raises(StorageError, match="something other than was asked for"):
        await network.read(10)
    assert len(network.proxy.ranges()) == POLICY.attempts
    network.meets(Fault(head=shift))
    assert await network.read(10) == DATA[10:]


async def test_all_bytes_where_some_were_wanted(network: Network) -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(DATA) + DATA
    network.meets(then=Fault(answer=whole))
    with pytest.raises(StorageError, match="a 200 with all bytes"):
        await network.read(10)


async def test_an_object_that_changes_on_the_way(network: Network) -> None:
    network.meets(Fault(cut=300_000))
    stream = await network.storage.stream(network.path)
    await network.put(DATA[::-1] + b"longer: nginx's etag has whole seconds and the size")
    got, buffer = bytearray(), bytearray(70_000)
    with pytest.raises(ObjectChangedError) as caught:
        while count := await stream.readinto(memoryview(buffer)):
            got += buffer[:count]
    assert caught.value.path == network.path
    assert got == DATA[: caught.value.offset]


async def test_a_server_that_goes_away(store: Store) -> None:
    async with through_a_proxy(store) as network:
        network.meets(*[Fault(stall=200_000)] * 4)  # second requests too
        stream = await network.storage.stream(network.path)
        await stream.readinto(memoryview(bytearray(100)))
        await network.proxy.__aexit__(None, None, None)
        with pytest.raises(StorageError) as caught:
            await read_all(stream)
        assert caught.value.path == network.path
        assert (caught.value.offset or 0) >= 100


@pytest.mark.parametrize("store", ["s3_store", "gcs_store"], indirect=True)
@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_each_request_of_an_upload_may_fail_once(store: Store, lost: str) -> None:
    """Parts, the start and the end: with the request lost, or with its answer lost after it took
    effect.
    """
    data = os.urandom(17 << 20)
    seen: set[tuple[str, str]] = set()
    fault = status("503 Slow Down") if lost == "request" else Fault(cut=0, head=lambda head: b"")

    def choose(request: Request) -> Fault | None:
        key = (request.method, request.path + request.headers.get("content-range", ""))
        fresh = key not in seen and (lost == "request" or "uploads" not in request.path)
        seen.add(key)
        return fault if fresh else None

    async with through_a_proxy(store, replace(POLICY, attempts=5)) as network:
        network.proxy.choose = choose
        async with await network.storage.upload(network.path, part_size=5 << 20) as upload:
            await upload.write(data)
        network.proxy.choose = lambda request: None
        assert len(seen) >= 4
        assert await network.read() == data


@pytest.mark.parametrize("store", ["s3_store", "gcs_store"], indirect=True)
async def test_an_upload_that_cannot_be_stored(network: Network) -> None:
    before = await network.read()
    network.proxy.choose = lambda request: (
        status("503 Slow Down") if "upload" in request.path.lower() else None
    )
    with pytest.raises(ThrottledError) as caught:
        async with await network.storage.upload(network.path, part_size=5 << 20) as upload:
            for _ in range(20):
                await upload.write(bytes(5 << 20))
    assert caught.value.path == network.path
    assert await network.read() == before


async def test_cancellation_is_quick(network: Network) -> None:
    network.meets(then=Fault(stall=0))
    stream = await network.storage.stream(network.path)
    task = asyncio.create_task(stream.readinto(memoryview(bytearray(10))))
    for _ in range(10):  # steps of the loop: it waits for bytes then
        await asyncio.sleep(0)
    task.cancel()
    began = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < POLICY.stall_timeout / 10
