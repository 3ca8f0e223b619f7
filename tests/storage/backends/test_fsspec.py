"""Any other fsspec filesystem, async and sync."""

import asyncio
import weakref
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from s3fs import S3FileSystem

from streamrec import TFRecordDataset, encode_records
from streamrec.errors import MissingExtraError, StorageError
from streamrec.storage import Storages
from tests.servers.real import Store
from tests.storage.contract import NotExclusiveTests, Place


class PlainS3(S3FileSystem):  # type: ignore[misc]
    """S3 under a protocol that has no backend of its own."""

    protocol = ("plains3",)


@pytest.mark.thorough  # TestAsyncAroundSync runs the same backend
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # s3fs's own way of uploading
class TestAsync(NotExclusiveTests):
    @pytest.fixture
    def place(self, s3_store: Store) -> Place:
        fsspec.register_implementation("plains3", PlainS3, clobber=True)
        return Place(f"plains3://streamrec/{uuid4().hex}", s3_store.options)


class TestSync(NotExclusiveTests):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place("/below", filesystem=DirFileSystem(path=str(tmp_path), fs=LocalFileSystem()))


class TestAsyncAroundSync(NotExclusiveTests):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        own = AsyncFileSystemWrapper(LocalFileSystem(auto_mkdir=True), asynchronous=True)
        return Place(str(tmp_path), filesystem=own)


async def test_a_protocol_that_nobody_knows() -> None:
    async with Storages() as storages:
        with pytest.raises(StorageError, match="no filesystem is known for"):
            await storages.at("nosuch://x/y")


async def test_a_protocol_whose_package_is_missing() -> None:
    async with Storages() as storages:
        with pytest.raises(MissingExtraError, match="dropboxdrivefs"):
            await storages.at("dropbox://x/y")


class ServiceClient:
    """What adlfs keeps: it must be closed, and nobody says so."""

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
