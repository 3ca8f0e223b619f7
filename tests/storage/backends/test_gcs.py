"""GCS against fake-gcs-server."""

from typing import Any
from uuid import uuid4

import pytest
from gcsfs.core import GCSFileSystem

from streamrec.errors import NotFoundError, StorageError
from streamrec.storage import Storage
from tests.servers.real import Store
from tests.storage.contract import (
    DATA,
    PART,
    Place,
    ReadingTests,
    RemoteTests,
    check,
    kill_while_writing,
)


class TestGcs(RemoteTests):
    EXCLUSIVE = (0,)  # fake-gcs-server keeps ifGenerationMatch for objects of one part only

    @pytest.fixture
    def place(self, gcs_store: Store) -> Place:
        return Place(f"{gcs_store.url}/{uuid4().hex}", gcs_store.options)

    async def test_a_killed_process_leaves_no_object(
        self, storage: Storage, place: Place, path: str
    ) -> None:
        kill_while_writing([path], place.options, PART)
        await self.check_nothing_is_left(storage, path)

    @pytest.mark.parametrize("path", ["gs://", "gs://bucket"])
    async def test_a_gs_url_without_an_object_is_an_error(
        self, storage: Storage, path: str
    ) -> None:
        with pytest.raises(StorageError, match="gs://bucket/key"):
            await storage.stream(path)

    async def test_an_object_that_vanished(self, storage: Storage, path: str) -> None:
        await self.put(storage, path, DATA)
        version = (await storage.stat(path)).version
        with pytest.raises(NotFoundError):
            await storage.stream(path + "-gone", 5, version=version)


class TestTheUsersOwn(ReadingTests):
    @pytest.fixture
    def place(self, gcs_store: Store) -> Place:
        own = GCSFileSystem(**gcs_store.options, use_listings_cache=False)
        return Place(f"{gcs_store.url}/{uuid4().hex}", filesystem=own)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "requester pays": {"requester_pays": True, "project": "who-pays"},
    "another project pays": {"requester_pays": "who-pays"},
    "others": {
        "requests_timeout": 20,
        "timeout": 30,
        "default_location": "EU",
        "block_size": 1 << 20,
    },
    "session": {"session_kwargs": {"trust_env": True}, "version_aware": True},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_requests_with_any_options_of_gcsfs_equal_those_of_the_client(
    gcs_store: Store, case: str
) -> None:
    """Options of gcsfs that have an effect here, and others."""
    assert check(f"{gcs_store.url}/{uuid4().hex}", {**gcs_store.options, **OPTIONS[case]}) == 0
