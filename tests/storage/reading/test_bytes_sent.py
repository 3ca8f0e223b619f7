"""What a real server sends for objects that are read by parallel ranges: hardly more than all.

A request that is cut short has sent more than was read: what the sockets of both ends hold.
"""

import os

import pytest

from streamrec.storage import Storages
from tests.servers.accesslog import AccessLog
from tests.servers.objectstore import anonymous_options
from tests.servers.real import nginx
from tests.storage.contract import read_all

OBJECTS = 4
NO_RANGES = "max_ranges 0;"
NO_VERSIONS = 'etag off; add_header Last-Modified "";'


@pytest.mark.parametrize("is_listed", [True, False])
async def test_ranges_follow_a_first_request_that_need_not_be_cut(is_listed: bool) -> None:
    """A listing tells the size, or the object before it does; that first one is not counted."""
    data = os.urandom(20_000_000)
    with nginx() as store:
        urls = [f"{store.url}/{number}" for number in range(OBJECTS)]
        for number in range(OBJECTS):
            (store.directory / str(number)).write_bytes(data)
        size = len(data) if is_listed else None
        async with Storages() as storages:
            storage = await storages.at(urls[0])
            assert await read_all(await storage.stream(urls[0]), 1 << 20) == data
            log = AccessLog(store)
            for url in urls:
                assert await read_all(await storage.stream(url, size=size), 1 << 20) == data
            taken = log.taken()
    assert taken.requests > OBJECTS
    assert taken.nbytes <= 1.02 * OBJECTS * len(data)


async def test_the_first_large_object_of_s3_needs_no_request_that_is_cut() -> None:
    data = os.urandom(20_000_000)
    with nginx() as store:
        (store.directory / "bucket").mkdir()
        (store.directory / "bucket" / "0").write_bytes(data)
        async with Storages(anonymous_options("s3", store.url)) as storages:
            storage = await storages.at("s3://bucket")
            log = AccessLog(store)
            stream = await storage.stream("s3://bucket/0", size=len(data))
            assert await read_all(stream, 1 << 20) == data
            taken = log.taken()
    assert taken.requests > 1
    assert taken.nbytes <= 1.02 * len(data)


@pytest.mark.parametrize("settings", [NO_RANGES, NO_VERSIONS])
async def test_a_server_without_ranges_or_versions_delivers_large_objects(settings: str) -> None:
    """Their first request may have been for the beginning only, as the size was known."""
    data = os.urandom(20_000_000)
    with nginx(settings=settings) as store:
        urls = [f"{store.url}/{number}" for number in range(OBJECTS)]
        for number in range(OBJECTS):
            (store.directory / str(number)).write_bytes(data)
        async with Storages() as storages:
            storage = await storages.at(urls[0])
            log = AccessLog(store)
            for url in urls:
                assert await read_all(await storage.stream(url, size=len(data)), 1 << 20) == data
            taken = log.taken()
            retries = storages.statistics.snapshot().backends["http"].retries
    assert sum(retries.values()) == 0
    assert taken.requests <= OBJECTS + 1
    assert taken.nbytes <= 1.02 * OBJECTS * len(data)
