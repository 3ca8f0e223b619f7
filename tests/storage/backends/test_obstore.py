"""obstore against SeaweedFS and fake-gcs-server; and what its hazards come to."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streamrec import encode_records
from streamrec.errors import MissingExtraError, NotFoundError, PermissionDeniedError, StorageError, ThrottledError
from streamrec.storage import RetryPolicy, Storage, Storages
from streamrec.storage.backends.obstore.chunk_sizes import MOST, ChunkSizes
from streamrec.storage.backends.obstore.options import settings
from streamrec.testing.faults import Faults
from streamrec.testing.objectstore import ObjectStore
from streamrec.testing.proxy import FaultProxy
from streamrec.testing.servers import Store, seaweedfs
from tests.effort import THOROUGH, thorough
from tests.storage.backends.test_s3 import PART
from tests.storage.contract import (
    DATA,
    QUICK,
    NotExclusiveTests,
    Place,
    ReadingTests,
    StorageTests,
    kill_while_writing,
    read_all,
)
from tests.storage.faultproxy import Fault, Request, status
from tests.storage.faultproxy import FaultProxy as OneByOne


def through_obstore(store: Store) -> dict[str, Any]:
    """The same options, and one word more."""
    return {**store.options, "backend": "obstore"}


async def orphans(store: Store, path: str) -> list[Any]:
    """The multipart uploads under way below a path, as s3fs sees them."""
    bucket, _, key = path.removeprefix("s3://").partition("/")
    async with Storages(store.options) as plain:
        filesystem = (await plain.at(path))._backend._fs  # type: ignore[attr-defined]
        found = await filesystem._call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
    uploads: list[Any] = found.get("Uploads", [])
    return uploads


class TestS3(NotExclusiveTests):
    @pytest.fixture
    def place(self, s3_store: Store) -> Place:
        self.store = s3_store
        return Place(f"{s3_store.url}/{uuid4().hex}", through_obstore(s3_store))

    def part_size(self) -> int:
        return PART

    async def check_nothing_is_left(self, storage: Storage, path: str) -> None:
        await super().check_nothing_is_left(storage, path)
        assert await orphans(self.store, path) == []

    @pytest.mark.thorough
    async def test_more_than_a_page(self, storage: Storage, path: str) -> None:
        names = [f"{path}/{i:05}" for i in range(1_050)]
        for name in names:
            await self.put(storage, name, b"")
        assert [info.path async for info in storage.list(f"{path}/")] == names

    async def test_any_prefix(self, storage: Storage, path: str) -> None:
        names = [f"{path}/{name}" for name in (*self.LISTED, "b", "b-12/3", "train-1", "train-x/2", "train", "u")]
        for name in names:
            await self.put(storage, name, b"1")
        for prefix in ("", "b", "b-", "b-1", "b/", "b/1", "c", "c/", "c/x", "t", "train", "train-", "train-x/", "v"):
            found = [info.path async for info in storage.list(f"{path}/{prefix}")]
            assert found == sorted(name for name in names if name.startswith(f"{path}/{prefix}"))

    async def test_parts_in_flight_are_bounded(self, s3_store: Store, path: str) -> None:
        data = os.urandom(10 * PART + 11)
        with FaultProxy(s3_store.endpoint, Faults(first_byte=0.1, jitter=0)) as proxy:
            async with Storages({**through_obstore(s3_store), "endpoint_url": proxy.url}, retry=QUICK) as storages:
                storage = await storages.at(path)
                async with await storage.upload(path, part_size=PART) as upload:
                    for start in range(0, len(data), 777_777):
                        await upload.write(data[start : start + 777_777])
                assert proxy.counters.peak_in_flight in (2, 3)
                assert await read_all(await storage.stream(path)) == data

    @pytest.mark.parametrize("refused", ["uploads", "partNumber=2", "uploadId"])
    async def test_what_cannot_be_stored_is_aborted(self, s3_store: Store, path: str, refused: str) -> None:
        def choose(request: Request) -> Fault | None:
            return status("503 Slow Down") if refused in request.path and request.method in ("PUT", "POST") else None

        async with OneByOne(s3_store.endpoint, choose) as proxy:
            options = {**through_obstore(s3_store), "endpoint_url": proxy.url}
            async with Storages(options, retry=QUICK) as storages:
                storage = await storages.at(path)
                with pytest.raises(ThrottledError):
                    await self.put_parts(storage, path)
                await self.check_nothing_is_left(storage, path)

    async def put_parts(self, storage: Storage, path: str) -> None:
        async with await storage.upload(path, part_size=PART) as upload:
            await upload.write(bytes(3 * PART))

    async def test_a_killed_process_leaves_no_object(self, storage: Storage, place: Place, path: str) -> None:
        kill_while_writing(path, place.options, PART)
        await StorageTests.check_nothing_is_left(self, storage, path)

    async def test_a_missing_bucket(self, storage: Storage) -> None:
        path = f"s3://no-such-bucket-{uuid4().hex}/key"
        for call in (storage.stat(path), storage.stream(path), anext(aiter(storage.list(path)))):
            with pytest.raises(NotFoundError) as caught:
                await call
            assert caught.value.path == path

    async def test_a_wrong_key(self, s3_store: Store, path: str) -> None:
        async with Storages({**through_obstore(s3_store), "secret": "wrong"}, retry=QUICK) as storages:
            storage = await storages.at(path)
            for call in (storage.stat(path), storage.stream(path), anext(aiter(storage.list(path)))):
                with pytest.raises(PermissionDeniedError, match="credentials") as caught:
                    await call
                assert caught.value.path == path

    async def test_a_key_that_it_cannot_name(self, storage: Storage, path: str) -> None:
        with pytest.raises(StorageError, match="cannot name this key"):
            await storage.stat(f"{path}//a")

    async def test_ours_are_the_only_retries_of_a_read(self, s3_store: Store, path: str) -> None:
        with FaultProxy(s3_store.endpoint, Faults(unavailable=1.0, first_byte=0, jitter=0)) as proxy:
            async with Storages({**through_obstore(s3_store), "endpoint_url": proxy.url}, retry=QUICK) as storages:
                storage = await storages.at(path)
                for call in (storage.stat(path), storage.stream(path)):
                    with pytest.raises(StorageError, match="3 attempts in a row"):
                        await call
            assert proxy.wait_idle()
            assert proxy.counters.requests == 2 * QUICK.attempts

    async def test_a_body_that_breaks_again_and_again_makes_progress(self, s3_store: Store, path: str) -> None:
        data = os.urandom(700_000)

        def choose(request: Request) -> Fault | None:
            return Fault(cut=60_000) if request.method == "GET" else None

        async with OneByOne(s3_store.endpoint, choose) as proxy:
            options = {**through_obstore(s3_store), "endpoint_url": proxy.url}
            async with Storages(options, retry=replace(QUICK, hedge_share=0)) as storages:
                storage = await storages.at(path)
                await self.put(storage, path, data)
                assert await read_all(await storage.stream(path)) == data

    async def test_a_slow_body_gives_what_it_has_to_the_request_that_races_it(self, s3_store: Store, path: str) -> None:
        data = os.urandom(700_000)

        def choose(request: Request) -> Fault | None:
            return Fault(stall=60_000) if request.method == "GET" and len(proxy.ranges()) < 3 else None

        async with OneByOne(s3_store.endpoint, choose) as proxy:
            options = {**through_obstore(s3_store), "endpoint_url": proxy.url}
            policy = replace(QUICK, stall_timeout=5, hedge_share=1.0)
            async with Storages(options, retry=policy) as storages:
                storage = await storages.at(path)
                await self.put(storage, path, data)
                assert await read_all(await storage.stream(path)) == data
        first, second = proxy.ranges()[:2]
        assert first == second, "the second request is for all that the first one holds back"

    async def test_a_listing_is_tried_again_page_by_page(self, s3_store: Store, path: str) -> None:
        once = Faults(script=("unavailable", "unavailable"), first_byte=0, jitter=0)
        with FaultProxy(s3_store.endpoint, once) as proxy:
            async with Storages({**through_obstore(s3_store), "endpoint_url": proxy.url}, retry=QUICK) as storages:
                storage = await storages.at(path)
                assert [info async for info in storage.list(path)] == []
            assert proxy.wait_idle()
            assert proxy.counters.requests == 3

    async def test_a_listing_ends_behind_its_prefix(self, tmp_path: Path) -> None:
        (tmp_path / "bucket" / "dir").mkdir(parents=True)
        for number in range(4_000):
            (tmp_path / "bucket" / "dir" / f"{number:05}").touch()
        with ObjectStore(tmp_path) as store:
            async with Storages({"endpoint_url": store.url, "anon": True, "backend": "obstore"}) as storages:
                storage = await storages.at("s3://bucket")
                found = [info.path async for info in storage.list("s3://bucket/dir/0110")]
            assert found == [f"s3://bucket/dir/0110{last}" for last in range(10)]
            assert store.wait_idle()
            assert store.counters.by_kind == {"list": 2}


class TestGcs(ReadingTests):
    @pytest.fixture
    def place(self, gcs_store: Store) -> Place:
        self.options = gcs_store.options
        return Place(f"{gcs_store.url}/{uuid4().hex}", through_obstore(gcs_store))

    async def put(self, storage: Storage, path: str, data: bytes) -> None:
        """Past obstore: fake-gcs-server has not the interface that it writes through."""
        async with Storages(self.options) as plain, await (await plain.at(path)).upload(path) as upload:
            await upload.write(data)

    async def test_list(self, storage: Storage, path: str) -> None:
        names = [f"{path}/{name}" for name in StorageTests.LISTED]
        for name in names:
            await self.put(storage, name, b"1")
        assert [info.path async for info in storage.list(f"{path}/")] == sorted(names)
        assert [info.path async for info in storage.list(f"{path}/b/1")] == [f"{path}/b/1", f"{path}/b/10"]
        assert [info.path async for info in storage.list(f"{path}/b-")] == [f"{path}/b-1"]
        for info in [info async for info in storage.list(f"{path}/c/")]:
            assert info == replace(await storage.stat(info.path), version=None)  # its listings have no generation


@pytest.fixture(scope="module")
def open_store() -> Iterator[Store]:
    """A SeaweedFS that asks for no signatures, reached as if it were GCS, whose XML interface is much like S3's."""
    with seaweedfs(signed=False) as store:
        yield replace(store, options={"endpoint_url": store.endpoint, "token": "anon"})


class TestGcsWriting:
    """What fake-gcs-server cannot do: multipart uploads by the XML interface."""

    @pytest.mark.parametrize("size", [0, 10, PART, 3 * PART + 5])
    async def test_round_trip(self, open_store: Store, size: int) -> None:
        path, data = f"gs://streamrec/{uuid4().hex}", os.urandom(size)
        async with Storages(through_obstore(open_store), retry=QUICK) as storages:
            storage = await storages.at(path)
            async with await storage.upload(path, part_size=PART) as upload:
                await upload.write(data)
            assert (await storage.stat(path)).size == size
            assert await read_all(await storage.stream(path)) == data

    async def test_an_exception_leaves_nothing(self, open_store: Store) -> None:
        path = f"gs://streamrec/{uuid4().hex}"
        async with Storages(through_obstore(open_store), retry=QUICK) as storages:
            storage = await storages.at(path)
            with pytest.raises(ZeroDivisionError):
                await self.fail_while_writing(storage, path)
            with pytest.raises(NotFoundError):
                await storage.stat(path)

    async def fail_while_writing(self, storage: Storage, path: str) -> None:
        async with await storage.upload(path, part_size=PART) as upload:
            await upload.write(bytes(3 * PART))
            raise ZeroDivisionError


def test_chunks_shrink_where_bodies_break_and_grow_as_they_get_further() -> None:
    sizes, path = ChunkSizes(), "s3://b/k"
    assert sizes.size(path, 0) == MOST
    found = []
    for given in (0, 40_000, 400_000, 8 << 20):
        sizes.broke(path, given)
        found.append(sizes.size(path, 0))
    assert found == [1, 10_000, 100_000, MOST]
    sizes.broke(path, 0)
    assert sizes.size("s3://b/other", 0) == MOST, "another object's connections may flow"
    sizes.ended(path)
    assert sizes.size(path, 0) == MOST


def test_a_second_request_for_bytes_that_are_waited_for_gathers_nothing() -> None:
    sizes, path = ChunkSizes(), "s3://b/k"
    sizes.waits(path, 500)
    assert (sizes.size(path, 500), sizes.size(path, 501)) == (1, MOST)
    sizes.came(path, 500)
    assert sizes.size(path, 500) == MOST


def test_what_is_remembered_of_objects_is_bounded() -> None:
    sizes = ChunkSizes()
    for index in range(3_000):
        sizes.broke(f"s3://b/{index}", 0)
    assert (sizes.size("s3://b/0", 0), sizes.size("s3://b/2999", 0)) == (MOST, 1)


@pytest.mark.parametrize(
    ("protocol", "options", "config"),
    [
        (
            "s3",
            {"key": "k", "secret": "s", "token": "t", "client_kwargs": {"region_name": "eu-west-1"}},
            {"access_key_id": "k", "secret_access_key": "s", "session_token": "t", "region": "eu-west-1"},
        ),
        (
            "s3",
            {"anon": True, "client_kwargs": {"endpoint_url": "https://h"}},
            {"skip_signature": True, "endpoint": "https://h", "region": "us-east-1"},
        ),
        ("gs", {"token": "anon", "project": "p"}, {"skip_signature": True, "bearer_token": "anonymous"}),
        ("gs", {"token": {"a": "b"}}, {"service_account_key": '{"a": "b"}'}),
        ("gcs", {"token": "/x/key.json", "endpoint_url": ""}, {"service_account": "/x/key.json"}),
        ("gs", {}, {}),
    ],
)
def test_options(protocol: str, options: dict[str, Any], config: dict[str, Any]) -> None:
    found = settings(protocol, options, RetryPolicy())
    assert found.config == config
    assert found.client["allow_http"] is False
    assert found.client["read_timeout"].total_seconds() == RetryPolicy().stall_timeout


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        ("s3://b/k", {"config_kwargs": {}}, "'config_kwargs'"),
        ("s3://b/k", {"client_kwargs": {"api_version": 1}}, r"client_kwargs\['api_version'\]"),
        ("s3://b/k", {"use_ssl": False}, "use_ssl"),
        ("gs://b/k", {"secure_serialize": True}, "'secure_serialize'"),
        ("gs://b/k", {"token": "browser"}, "token"),
        ("http://h/k", {}, "not http://"),
    ],
)
async def test_an_option_without_a_counterpart_is_named(url: str, options: dict[str, Any], named: str) -> None:
    async with Storages({**options, "backend": "obstore"}) as storages:
        with pytest.raises(StorageError, match=named):
            await storages.at(url)


async def test_other_backends_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match="'rust'"):
        Storages({"backend": "rust"})


async def put(url: str, options: dict[str, Any], records: list[bytes]) -> None:
    async with Storages(options) as storages, await (await storages.at(url)).upload(url) as upload:
        await upload.write(encode_records(records))


async def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    for name in ("obstore", "obstore.backend"):
        monkeypatch.delitem(sys.modules, f"streamrec.storage.backends.{name}", raising=False)
    async with Storages({"backend": "obstore"}) as storages:
        with pytest.raises(MissingExtraError, match=r"streamrec\[obstore\]"):
            await storages.at("s3://b/k")


LEFT_OPEN = """
import asyncio, json, sys
from streamrec import TFRecordDataset
from streamrec.storage import Storages
how, url, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
async def drained():
    async with Storages(options) as storages:
        storage = await storages.at(url)
        stream = await storage.stream(url)
        while await stream.readinto(memoryview(bytearray(1 << 20))):
            pass
async def left():
    global kept
    kept = storages = Storages(options)
    storage = await storages.at(url)
    streams = [await storage.stream(url) for _ in range(4)]
    kept = storages, streams, [asyncio.ensure_future(s.readinto(memoryview(bytearray(10)))) for s in streams]
if how == "iterating":
    kept = iter(TFRecordDataset(url, storage_options=options))
    next(kept)
else:
    asyncio.run(drained() if how == "drained" else left())
print("done")
"""


@pytest.mark.parametrize("how", ["iterating", *thorough("drained", "left")])
def test_the_exit_is_clean(s3_store: Store, how: str) -> None:
    """Without the pauses at the end half of the "drained" runs abort."""
    url, options = f"{s3_store.url}/{uuid4().hex}", through_obstore(s3_store)
    asyncio.run(put(url, options, [DATA] * 10))

    def run(_: int) -> tuple[int, str, str]:
        command = [sys.executable, "-c", LEFT_OPEN, how, url, json.dumps(options)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(run, range(6 if THOROUGH else 2))) == {(0, "done\n", "")}


STRANGERS = """
import _thread, threading
def begin():
    inside, gate = threading.Event(), threading.Event()
    def stay():
        inside.set()
        gate.wait()
    _thread.start_new_thread(stay, ())  # as a library in C does: `threading` does not know it
    inside.wait()
    return gate
begin()
from streamrec.storage.backends.obstore import backend as obstore
assert not obstore._in_python()
gate = begin()
assert obstore._in_python()
gate.set()
while obstore._in_python():
    pass
"""


def test_threads_of_others_are_not_waited_for() -> None:
    """Else each close, and the exit, would take a second in a program that has one."""
    done = subprocess.run([sys.executable, "-c", STRANGERS], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


FORKED = """
import json, os, sys
from streamrec import TFRecordDataset
url, options = sys.argv[1], json.loads(sys.argv[2])
assert "obstore" not in sys.modules
print(len(list(TFRecordDataset(url, storage_options=options))), flush=True)
if os.fork() == 0:
    try:
        list(TFRecordDataset(url, storage_options=options))
    except Exception as error:
        print(type(error).__name__, error, flush=True)
else:
    os.wait()
"""


def test_a_forked_child_is_told(s3_store: Store) -> None:
    url, options = f"{s3_store.url}/{uuid4().hex}", through_obstore(s3_store)
    asyncio.run(put(url, options, [b"a", b"b"]))
    done = subprocess.run(
        [sys.executable, "-c", FORKED, url, json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    read, said = done.stdout.splitlines()
    assert read == "2"
    assert said.startswith("StorageError")
    assert "spawn" in said
    assert done.returncode == 0
