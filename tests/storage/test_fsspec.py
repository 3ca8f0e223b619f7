"""Any other fsspec filesystem, async and sync."""

from pathlib import Path
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from s3fs import S3FileSystem

from streamrec.errors import MissingExtraError, StorageError
from streamrec.storage import Storages
from streamrec.testing.servers import Store
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
