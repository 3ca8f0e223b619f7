"""obstore's own fsspec filesystem, as a user passes it: `filesystem=FsspecStore(...)`."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from streamrec import NotFoundError, ShardWriter, StorageError, TFRecordDataset, encode_records
from tests.servers.real import Store
from tests.storage.contract import QUICK_RETRIES, NotExclusiveTests, Place
from tests.storage.faultproxy import Fault, FaultProxy, in_a_thread, status

FsspecStore = pytest.importorskip("obstore.fsspec").FsspecStore

RECORDS = [b"record %d " % number * 50 for number in range(300)]


def filesystem_of(store: Store, **config: str) -> Any:
    credentials = {
        "access_key_id": store.options["key"],
        "secret_access_key": store.options["secret"],
    }
    return FsspecStore(
        "s3",
        config={"endpoint": store.endpoint, "region": "us-east-1", **credentials, **config},
        client_options={"allow_http": True},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=15)},
    )


class TestContract(NotExclusiveTests):
    @pytest.fixture
    def place(self, s3_store: Store) -> Place:
        return Place(f"{s3_store.url}/{uuid4().hex}", filesystem=filesystem_of(s3_store))


def test_shards_are_written_and_read_by_pattern(s3_store: Store) -> None:
    url, filesystem = f"{s3_store.url}/{uuid4().hex}", filesystem_of(s3_store)

    async def write() -> None:
        async with ShardWriter(
            f"{url}/x-{{shard}}.tfrecord", max_shard_records=100, filesystem=filesystem
        ) as writer:
            for record in RECORDS:
                await writer.write(record)

    asyncio.run(write())
    assert list(TFRecordDataset(f"{url}/x-*.tfrecord", filesystem=filesystem)) == RECORDS
    with pytest.raises(NotFoundError, match="no object matches"):
        list(TFRecordDataset(f"{url}/y-*.tfrecord", filesystem=filesystem))
    with pytest.raises(NotFoundError) as caught:
        list(TFRecordDataset(f"{url}/y.tfrecord", filesystem=filesystem))
    assert caught.value.path == f"{url}/y.tfrecord"


def test_errors_of_obstore_are_retried_and_then_quoted(s3_store: Store) -> None:
    url = f"{s3_store.url}/{uuid4().hex}.tfrecord"
    filesystem_of(s3_store).pipe_file(url, encode_records(RECORDS))
    faults = iter([status("503 Slow Down"), Fault(cut=1000)])
    proxy = FaultProxy(
        s3_store.endpoint, lambda request: next(faults, None) if request.method == "GET" else None
    )
    with in_a_thread(proxy):
        through_faults = filesystem_of(s3_store, endpoint=proxy.url)
        assert (
            list(
                TFRecordDataset(
                    url, filesystem=through_faults, retry=replace(QUICK_RETRIES, attempts=5)
                )
            )
            == RECORDS
        )
        assert next(faults, None) is None
    with pytest.raises(
        StorageError, match=r"(?s)PermissionDeniedError.* in 3 attempts in a row"
    ) as caught:
        list(
            TFRecordDataset(
                url,
                filesystem=filesystem_of(s3_store, secret_access_key="wrong"),
                retry=QUICK_RETRIES,
            )
        )
    assert caught.value.path == url
