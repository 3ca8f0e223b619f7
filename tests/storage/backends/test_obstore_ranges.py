"""obstore asks for objects range by range: what that asks of a store, and what it makes of faults."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import pytest

from streamrec.errors import ObjectChangedError
from streamrec.storage import Storage, Storages
from streamrec.storage.backends.obstore.ranges import LEAST, MOST_HELD, RANGE, Ranges
from streamrec.testing.servers import Store
from tests.storage.contract import QUICK, read_all
from tests.storage.faultproxy import Fault, FaultProxy, Request, status

DATA = os.urandom(3 * RANGE + 7)


class Place:
    """One object behind a proxy."""

    def __init__(self, proxy: FaultProxy, storages: Storages, storage: Storage, path: str) -> None:
        self.proxy, self.storages, self.storage, self.path = proxy, storages, storage, path

    def starts(self) -> list[int]:
        """The first bytes of all ranges that were asked for."""
        return [int(asked.removeprefix("bytes=").partition("-")[0]) for asked in self.proxy.ranges() if asked]


@asynccontextmanager
async def placed(
    store: Store, choose: Callable[[Request], Fault | None] = lambda request: None, attempts: int = 3
) -> AsyncIterator[Place]:
    """One connection at a time, so that no other ranges are asked for than obstore's."""
    path = f"{store.url}/{uuid4().hex}"
    async with FaultProxy(store.endpoint, choose) as proxy:
        options = {**store.options, "backend": "obstore", "endpoint_url": proxy.url}
        policy = replace(QUICK, attempts=attempts, hedge_share=0)
        async with Storages(options, retry=policy, max_connections=1) as storages:
            storage = await storages.at(path)
            await put(storage, path, DATA)
            yield Place(proxy, storages, storage, path)


async def put(storage: Storage, path: str, data: bytes) -> None:
    async with await storage.upload(path) as upload:
        await upload.write(data)


async def test_ranges_lie_end_to_end_and_are_of_one_version(s3_store: Store) -> None:
    async with placed(s3_store) as place:
        assert await read_all(await place.storage.stream(place.path)) == DATA
        assert place.proxy.ranges()[0] == f"bytes=0-{RANGE - 1}"
        assert place.starts() == list(range(0, len(DATA), RANGE))[: len(place.starts())]
        first, *others = [request for request in place.proxy.log if request.method == "GET"]
        assert "if-match" not in first.headers
        assert others
        assert all("if-match" in request.headers for request in others)
        assert place.storages.statistics.snapshot().backends["s3"].requests >= len(others) + 1


async def test_a_small_object_and_the_head_of_a_large_one_are_one_request(s3_store: Store) -> None:
    async with placed(s3_store) as place:
        stream = await place.storage.stream(place.path)
        while stream.position < 500_000:
            await stream.readinto(memoryview(bytearray(100_000)))
        await stream.aclose()
        assert place.starts() == [0]
        small = f"{place.path}.small"
        await put(place.storage, small, DATA[:1_000])
        assert await read_all(await place.storage.stream(small)) == DATA[:1_000]
        assert place.starts() == [0, 0]


async def test_an_object_that_is_replaced_before_its_second_range(s3_store: Store) -> None:
    async with placed(s3_store) as place:
        stream, got, buffer = await place.storage.stream(place.path), bytearray(), memoryview(bytearray(500_000))
        got += buffer[: await stream.readinto(buffer)]
        await put(place.storage, place.path, DATA[::-1])
        with pytest.raises(ObjectChangedError):
            while count := await stream.readinto(buffer):
                got += buffer[:count]
        assert got == DATA[: len(got)]
        assert len(got) <= RANGE


@pytest.mark.parametrize("fault", [status("503 Slow Down"), Fault(cut=60_000), Fault(cut=0)])
async def test_a_range_that_fails_is_asked_for_again(s3_store: Store, fault: Fault) -> None:
    met: list[str] = []

    def choose(request: Request) -> Fault | None:
        asked = request.headers.get("range", "")
        if request.method != "GET" or asked.startswith("bytes=0-") or asked in met:
            return None
        met.append(asked)
        return fault

    async with placed(s3_store, choose) as place:
        assert await read_all(await place.storage.stream(place.path)) == DATA
        assert sum(place.storages.statistics.snapshot().backends["s3"].retries.values()) >= 1


def without_ranges(request: Request) -> Fault | None:
    """What a store does that ignores the Range header: the status and length of the whole object."""

    def head(head: bytes) -> bytes:
        lines = head.replace(b"206 Partial Content", b"200 OK").split(b"\r\n")
        return b"\r\n".join(line for line in lines if not line.lower().startswith(b"content-range"))

    return Fault(head=head) if "range" in request.headers else None


async def test_a_store_that_ignores_ranges_is_asked_for_none(s3_store: Store) -> None:
    async with placed(s3_store, without_ranges, attempts=1) as place:
        for _ in range(2):
            assert await read_all(await place.storage.stream(place.path)) == DATA
        assert place.proxy.ranges() == [f"bytes=0-{RANGE - 1}", "", ""]
        counts = place.storages.statistics.snapshot().backends["s3"]
        assert (counts.fallbacks, sum(counts.retries.values())) == (1, 0)
        await put(place.storage, place.path, b"")
        assert await read_all(await place.storage.stream(place.path)) == b""


def test_what_is_taken_whole_is_bounded() -> None:
    ranges = Ranges()
    assert not ranges.take(RANGE), "nothing is known of its connections yet"
    ranges.flowed(RANGE, seconds=0.1)
    taken = 0
    while ranges.take(RANGE):
        taken += RANGE
    assert taken == MOST_HELD
    assert ranges.take(LEAST)
    ranges.drop(RANGE + LEAST)
    assert ranges.take(RANGE)
