"""S3 against SeaweedFS."""

import asyncio
import os
from typing import Any
from uuid import uuid4

import pytest
from botocore.loaders import JSONFileLoader
from s3fs import S3FileSystem

from streamrec.errors import NotFoundError, ObjectChangedError, StorageError
from streamrec.kernels import crc32c
from streamrec.storage import Replacement, Storage, Storages
from streamrec.storage.backend import encode_crc32c
from streamrec.storage.backends.s3 import backend as s3
from tests.effort import newest_client_only
from tests.servers.real import Store
from tests.storage.contract import (
    DATA,
    QUICK_RETRIES,
    Place,
    ReadingTests,
    RemoteTests,
    StorageTests,
    kill_while_writing,
    note_requests,
    open_storage,
    read_all,
    write_object,
)
from tests.storage.network import unfinished

PART = 5 << 20


class TestS3(RemoteTests):
    @pytest.fixture
    def place(self, s3_store: Store) -> Place:
        return Place(f"{s3_store.url}/{uuid4().hex}", s3_store.options)

    def part_size(self) -> int:
        return PART

    async def check_nothing_is_left(self, storage: Storage, path: str) -> None:
        await super().check_nothing_is_left(storage, path)
        assert await unfinished(storage, path) == []

    async def put_beside(self, storage: Storage, path: str, data: bytes) -> None:
        bucket, _, key = path.removeprefix("s3://").partition("/")
        await client(storage)._call_s3("put_object", Bucket=bucket, Key=key, Body=data)

    async def test_a_killed_process_leaves_no_object_and_the_next_upload_ends_what_it_left(
        self, storage: Storage, place: Place, path: str
    ) -> None:
        left = [path, path + "-2", path + "-2-longer"]
        kill_while_writing(left, place.options, PART)
        await StorageTests.check_nothing_is_left(self, storage, path)
        assert sorted(await unfinished(storage, path)) == left
        for size in (10, 2 * PART):
            await self.put(storage, left[0], bytes(size))
            assert sorted(await unfinished(storage, path)) == left[1:]
            assert (await storage.stat(left[0])).size == size
            left = left[1:]

    async def test_a_replacement_aborts_the_uploads_that_a_killed_process_left(
        self, storage: Storage, place: Place, path: str
    ) -> None:
        """It writes under hidden names, also the second object, which does not exist; the third one
        is alone.
        """
        left = [path, path + "-2", path + "-3"]
        kill_while_writing(left, place.options, PART)
        for name in (left[0], left[2]):
            await self.put_beside(storage, name, b"old")
        async with Storages(place.options) as storages, Replacement(storages) as objects:
            for name in left[:2]:
                upload = await objects.upload(name)
                await upload.write(b"new")
                await upload.complete()
        await self.put(storage, left[2], b"new")
        assert await unfinished(storage, path) == []

    async def test_the_last_of_two_writers_wins(self, storage: Storage, path: str) -> None:
        slow = await storage.upload(path, part_size=PART)
        await slow.write(bytes(3 * PART))
        await slow._sender.wait()  # else it might begin after the other one
        await self.put(storage, path, DATA)
        with pytest.raises(StorageError, match="another writer began on the same name") as caught:
            await slow.complete()
        assert caught.value.path == path
        await slow.abort()
        assert await read_all(await storage.stream(path)) == DATA
        assert await unfinished(storage, path) == []

    async def test_the_size_of_the_whole_and_its_checksum_stand_in_the_store(
        self, storage: Storage, path: str
    ) -> None:
        data = os.urandom(2 * PART + 1)
        await write_object(storage, path, data, part_size=PART)
        bucket, _, key = path.removeprefix("s3://").partition("/")
        head = await client(storage)._call_s3(
            "head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED"
        )
        assert (head["ContentLength"], head["ChecksumCRC32C"]) == (
            len(data),
            encode_crc32c(crc32c(data)),
        )

    @newest_client_only
    async def test_further_gets_are_those_of_the_client_but_lighter(
        self, storage: Storage, path: str
    ) -> None:
        """Keys that need quoting are found; errors are the same, and no reason to leave this
        way.
        """
        names = [
            f"{path}/{name}"
            for name in ("plain", "a b+c/ü~x*(1)", "p%q?r=1&#", "äö/__(-.)", "x//y")
        ]
        for name in names:
            await self.put(storage, name, name.encode())
        sent = gets_of_the_client(storage)
        for name in names * 2:
            assert await storage.read_range(name, 1, 1_000) == name.encode()[1:]
        assert len(sent) == 1
        with pytest.raises(NotFoundError) as caught:
            await storage.stream(f"{path}/missing")
        assert caught.value.path == f"{path}/missing"
        assert await storage.read_range(names[0], 1_000, 2_000) == b""
        with pytest.raises(ObjectChangedError):
            await storage.read_range(names[0], 0, 10, '"another version"')
        assert await storage.read_range(names[1], 0, 1_000) == names[1].encode()
        assert len(sent) == 1

    @newest_client_only
    async def test_the_client_sends_one_of_many_first_gets(
        self, storage: Storage, path: str
    ) -> None:
        names = [f"{path}/{number}" for number in range(8)]
        for name in names:
            await self.put(storage, name, name.encode())
        sent = gets_of_the_client(storage)
        assert await asyncio.gather(*(storage.read_range(name, 0, 1_000) for name in names)) == [
            name.encode() for name in names
        ]
        assert len(sent) == 1

    @newest_client_only
    async def test_requests_go_through_the_client_until_one_was_answered(
        self, storage: Storage, path: str
    ) -> None:
        await self.put(storage, path, DATA)
        sent = gets_of_the_client(storage)
        for count in (1, 2):
            with pytest.raises(NotFoundError):
                await storage.stream(f"{path}/missing")
            assert len(sent) == count
        assert await storage.read_range(path, 0, 10) == DATA[:10]
        with pytest.raises(NotFoundError):
            await storage.stream(f"{path}/missing")
        assert len(sent) == 2

    async def test_undrained_streams_give_their_connections_back(
        self, s3_store: Store, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(s3, "UNLIMITED", 3)
        async with Storages(s3_store.options, retry=QUICK_RETRIES) as storages, asyncio.timeout(30):
            storage = await storages.at(path)
            await self.put(storage, path, DATA * 20)
            for _ in range(12):
                stream = await storage.stream(path)
                await stream.readinto(memoryview(bytearray(10)))
                await stream.aclose()


class TestTheUsersOwn(ReadingTests):
    """With a pool that is too small for the open shards."""

    @pytest.fixture
    def place(self, s3_store: Store) -> Place:
        few = {"max_pool_connections": 10}
        own = S3FileSystem(**s3_store.options, config_kwargs=few, use_listings_cache=False)
        return Place(f"{s3_store.url}/{uuid4().hex}", filesystem=own)


def client(storage: Storage) -> Any:
    """The Storage's s3fs."""
    return storage._backend._fs  # type: ignore[attr-defined]


def gets_of_the_client(storage: Storage) -> list[str]:
    """The URLs that the client itself requests from now on."""
    return note_requests(storage, "before-send.s3.GetObject", lambda request: request.url)


@pytest.mark.parametrize("in_parts", [False, True])
async def test_a_copy_keeps_what_the_store_knows_of_an_object(
    s3_store: Store, monkeypatch: pytest.MonkeyPatch, in_parts: bool
) -> None:
    bucket, name = (
        s3_store.url.removeprefix("s3://"),
        f"{uuid4()}{'' if in_parts else '?versionId=3'}",
    )
    if in_parts:  # as objects above 5 GiB are
        monkeypatch.setattr(s3, "MAX_COPIED", 2)
        monkeypatch.setattr("s3fs.core.MANAGED_COPY_THRESHOLD", 2)
    known = {"Metadata": {"who": "me"}, "ContentType": "text/x-ours", "StorageClass": "STANDARD_IA"}
    async with open_storage(s3_store.url, s3_store.options) as storage:
        call = client(storage)._call_s3
        await call("put_object", Bucket=bucket, Key=name, Body=b"old", **known)
        await storage.copy(f"{s3_store.url}/{name}", f"{s3_store.url}/{name}-2")
        head = await call("head_object", Bucket=bucket, Key=f"{name}-2")
        assert {each: head[each] for each in known} == known
        with pytest.raises(NotFoundError):
            await storage.copy(f"{s3_store.url}/{name}-3", f"{s3_store.url}/{name}")


async def test_descriptions_of_services_are_parsed_once_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Storages({"anon": True}) as storages:
        await storages.at("s3://bucket/key")
    parsed: list[str] = []
    load = JSONFileLoader.load_file

    def noted(self: JSONFileLoader, path: str) -> Any:
        parsed.append(path)
        return load(self, path)

    monkeypatch.setattr(JSONFileLoader, "load_file", noted)
    async with Storages({"anon": True, "endpoint_url": "http://127.0.0.1:9"}) as storages:
        await storages.at("s3://bucket/key")
    assert parsed == []
