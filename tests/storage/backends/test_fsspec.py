"""Any other fsspec filesystem, async and sync, and fsspec's own memory."""

import asyncio
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from streamrec import TFRecordDataset, encode_records
from streamrec.storage import Storage
from tests.storage.contract import DATA, NotExclusiveTests, Place, StorageTests


class TestSync(NotExclusiveTests):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place("/below", filesystem=DirFileSystem(path=str(tmp_path), fs=LocalFileSystem()))


class TestAsyncAroundSync(NotExclusiveTests):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        own = AsyncFileSystemWrapper(LocalFileSystem(auto_mkdir=True), asynchronous=True)
        return Place(str(tmp_path), filesystem=own)


class ServiceClient:
    """A client that adlfs keeps and that must be closed, although nothing says so."""

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class LikeAzure(AsyncFileSystemWrapper):  # type: ignore[misc]
    """Has a client, and a finalizer that would run on a loop that is gone."""

    protocol = ("likeazure",)
    made: list["LikeAzure"] = []  # noqa: RUF012 - streamrec makes the instances

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(LocalFileSystem(auto_mkdir=True), **kwargs)
        self._strip_protocol = lambda path: path.removeprefix("likeazure://")
        self.service_client = ServiceClient()
        self.finalizer = weakref.finalize(self, pytest.fail, "the loop is gone")
        self.made.append(self)


def test_filesystems_that_we_made_are_closed(tmp_path: Path) -> None:
    """When their loop ends at the latest."""
    fsspec.register_implementation("likeazure", LikeAzure, clobber=True)
    (tmp_path / "x").write_bytes(encode_records([b"a"]))

    async def read() -> list[bytes]:
        return [record async for record in TFRecordDataset(f"likeazure://{tmp_path}/x")]

    assert asyncio.run(read()) == [b"a"]
    [filesystem] = LikeAzure.made
    assert filesystem.service_client.closed == 1
    assert not filesystem.finalizer.alive


class TestMemory(StorageTests):
    @pytest.fixture
    def place(self) -> Iterator[Place]:
        yield Place("memory://bucket")
        fsspec.filesystem("memory").store.clear()

    async def test_memory_urls_are_those_of_the_users_own_filesystem(
        self, storage: Storage, path: str
    ) -> None:
        fsspec.filesystem("memory").pipe_file(path, DATA)
        assert await storage.read_range(path, 0, len(DATA)) == DATA
        await self.put(storage, path + "2", DATA)
        assert fsspec.filesystem("memory").cat_file(path + "2") == DATA


class TestTheUsersOwn(StorageTests):
    @pytest.fixture
    def place(self) -> Place:
        own = fsspec.filesystem("memory", global_store=False, skip_instance_cache=True)
        return Place("memory://bucket", filesystem=own)
