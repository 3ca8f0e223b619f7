"""fsspec's memory filesystem."""

from collections.abc import Iterator

import fsspec
import pytest

from streamrec.storage import Storage
from tests.storage.contract import DATA, Place, StorageTests


class TestMemory(StorageTests):
    @pytest.fixture
    def place(self) -> Iterator[Place]:
        yield Place("memory://bucket")
        fsspec.filesystem("memory").store.clear()

    async def test_it_is_the_one_that_users_see(self, storage: Storage, path: str) -> None:
        fsspec.filesystem("memory").pipe_file(path, DATA)
        assert await storage.read_range(path, 0, len(DATA)) == DATA
        await self.put(storage, path + "2", DATA)
        assert fsspec.filesystem("memory").cat_file(path + "2") == DATA


class TestTheUsersOwn(StorageTests):
    @pytest.fixture
    def place(self) -> Place:
        own = fsspec.filesystem("memory", global_store=False, skip_instance_cache=True)
        return Place("memory://bucket", filesystem=own)
