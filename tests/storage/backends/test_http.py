"""Plain HTTP against nginx."""

# ruff: noqa: ASYNC240 (a test may block its own loop)

import os
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest
from fsspec.implementations.http import HTTPFileSystem

from streamrec.errors import PermissionDeniedError
from streamrec.storage import Storage, Storages
from tests.servers.real import Store
from tests.storage.contract import DATA, Place, ReadOnlyTests, read_all


class TestHttp(ReadOnlyTests):
    @pytest.fixture
    def place(self, http_store: Store) -> Place:
        return Place(f"{http_store.url}/{uuid4().hex}")

    @pytest.fixture(autouse=True)
    def _files(self, http_store: Store) -> None:
        self.files = http_store.directory
        self.url = http_store.url

    async def put(self, storage: Storage, path: str, data: bytes) -> None:
        """Replaces the file, so that readers of the old one keep its content."""
        file = self.files / path.removeprefix(self.url + "/")
        file.parent.mkdir(exist_ok=True)
        temporary = Path(f"{file}.new")
        temporary.write_bytes(data)
        temporary.replace(file)

    async def test_no_right_to_read(self, storage: Storage, path: str) -> None:
        for call in (storage.stat(self.url + "/"), storage.stream(self.url + "/")):
            with pytest.raises(PermissionDeniedError, match="403"):
                await call

    async def test_a_pinned_object_that_changes_while_read(
        self, storage: Storage, path: str
    ) -> None:
        await self.put(storage, path, DATA)
        stream = await storage.stream(path)
        await self.put(storage, path, os.urandom(len(DATA)))
        assert await read_all(stream) == DATA


class TestTheUsersOwn(TestHttp):
    @pytest.fixture
    def place(self, http_store: Store) -> Place:
        own = HTTPFileSystem(use_listings_cache=False, headers={"X-Test": "1"})
        return Place(f"{http_store.url}/{uuid4().hex}", filesystem=own)


@pytest.mark.parametrize(
    ("limits", "told"),
    [({}, True), ({"limit": 0}, False), ({"limit": 0, "limit_per_host": 8}, True)],
)
async def test_a_pool_that_may_be_too_small_is_reported(
    caplog: pytest.LogCaptureFixture, limits: dict[str, int], told: bool
) -> None:
    """The user's connector is not changed, although open shards may wait for each other."""
    async with (
        aiohttp.TCPConnector(**limits) as connector,
        Storages({"client_kwargs": {"connector": connector}}) as storages,
    ):
        await storages.at("http://127.0.0.1:9/shard")
    assert ("pass limit=0" in caplog.text) is told
