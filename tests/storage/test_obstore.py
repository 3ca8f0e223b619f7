"""obstore against SeaweedFS and fake-gcs-server."""

from uuid import uuid4

import pytest

from streamrec.storage import Storage, Storages
from streamrec.testing.servers import Store
from tests.storage.contract import Place, ReadingTests, StorageTests
from tests.storage.test_s3 import PART


def through_obstore(store: Store) -> dict[str, object]:
    """The same options, and one word more."""
    return {**store.options, "backend": "obstore"}


class TestS3(StorageTests):
    @pytest.fixture
    def place(self, s3_store: Store) -> Place:
        return Place(f"{s3_store.url}/{uuid4().hex}", through_obstore(s3_store))

    def part_size(self) -> int:
        return PART


class TestGcs(ReadingTests):
    @pytest.fixture
    def place(self, gcs_store: Store) -> Place:
        self.options = gcs_store.options
        return Place(f"{gcs_store.url}/{uuid4().hex}", through_obstore(gcs_store))

    async def put(self, storage: Storage, path: str, data: bytes) -> None:
        """Past obstore: fake-gcs-server has not the interface that it writes through."""
        async with Storages(self.options) as plain, await (await plain.at(path)).upload(path) as upload:
            await upload.write(data)
