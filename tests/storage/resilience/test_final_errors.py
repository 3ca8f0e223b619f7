"""Errors that trying again does not mend: one clear error, at once, after as few requests as can be."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streamrec import NotFoundError, StorageError
from streamrec.errors import PermissionDeniedError
from streamrec.storage import Storage, Storages
from tests.servers.objectstore import ObjectStore
from tests.servers.real import Store
from tests.storage.faultproxy import FaultProxy, status


@pytest.fixture(params=["s3_store", "gcs_store", "simulated_s3", "simulated_gs"])
def store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[ObjectStore]:
    (tmp_path / "bucket").mkdir()
    with ObjectStore(tmp_path) as store:
        yield store


@pytest.fixture
def simulated_s3(simulated: ObjectStore, tmp_path: Path) -> Store:
    options = {"endpoint_url": simulated.url, "anon": True}
    return Store(simulated.url, "s3://bucket", options, tmp_path, tmp_path)


@pytest.fixture
def simulated_gs(simulated: ObjectStore, tmp_path: Path) -> Store:
    options = {"endpoint_url": simulated.url, "token": "anon", "project": "p"}
    return Store(simulated.url, "gs://bucket", options, tmp_path, tmp_path)


@asynccontextmanager
async def proxied(store: Store, **changes: Any) -> AsyncIterator[tuple[FaultProxy, Storage]]:
    async with FaultProxy(store.endpoint) as proxy:
        options = {**store.options, "endpoint_url": proxy.url, **changes}
        async with Storages(options) as storages:
            yield proxy, await storages.at(store.url)


@pytest.mark.parametrize("place", ["nothing-here", "no-such-bucket"])
async def test_what_is_not_there(store: Store, place: str) -> None:
    path = f"{store.url}/nothing-here" if place == "nothing-here" else f"{store.url}-of-nobody/key"
    async with proxied(store) as (proxy, storage):
        for verb in (storage.stream, storage.stat):
            proxy.log.clear()
            with pytest.raises(NotFoundError) as caught:
                await verb(path)
            assert caught.value.path == path
            assert len(proxy.log) == 1, "nothing was tried again"


async def test_a_name_that_no_bucket_can_have(store: Store) -> None:
    async with proxied(store) as (proxy, storage):
        scheme = store.url.partition("://")[0]
        with pytest.raises(StorageError):
            await storage.stream(f"{scheme}://A_B!/key")
        assert len(proxy.log) <= 1


async def test_a_wrong_key(s3_store: Store) -> None:
    async with proxied(s3_store, secret="wrong") as (proxy, storage):
        for verb in (storage.stream, storage.stat):
            proxy.log.clear()
            with pytest.raises(PermissionDeniedError):
                await verb(f"{s3_store.url}/key")
            assert len(proxy.log) == 1


@pytest.mark.parametrize("line", ["401 Unauthorized", "403 Forbidden"])
async def test_no_permission(store: Store, line: str) -> None:
    async with proxied(store) as (proxy, storage):
        proxy.choose = lambda request: status(line)
        for verb in (storage.stream, storage.stat):
            proxy.log.clear()
            with pytest.raises(PermissionDeniedError):
                await verb(f"{store.url}/key")
            assert len(proxy.log) == 1
