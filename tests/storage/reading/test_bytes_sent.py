"""What a real server sends for objects that are read by parallel ranges: hardly more than all.

A request that is cut short has sent more than was read: what the sockets of both ends hold.
"""

import os

import pytest

from streamrec.storage import Storages
from tests.servers.accesslog import AccessLog
from tests.servers.real import nginx
from tests.storage.contract import read_all

OBJECTS = 4


@pytest.mark.parametrize("is_listed", [True, False])
async def test_ranges_follow_a_first_request_that_need_not_be_cut(is_listed: bool) -> None:
    """A listing tells the size, or the object before it does."""
    data = os.urandom(20_000_000)
    with nginx() as store:
        urls = [f"{store.url}/{number}" for number in range(OBJECTS)]
        for number in range(OBJECTS):
            (store.directory / str(number)).write_bytes(data)
        size = len(data) if is_listed else None
        async with Storages() as storages:
            storage = await storages.at(urls[0])
            if not is_listed:
                assert await read_all(await storage.stream(urls[0]), 1 << 20) == data
            log = AccessLog(store)
            for url in urls:
                assert await read_all(await storage.stream(url, size=size), 1 << 20) == data
            taken = log.taken()
    assert taken.requests > OBJECTS
    assert taken.nbytes <= 1.02 * OBJECTS * len(data)
