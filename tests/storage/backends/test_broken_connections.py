"""Connections that break in the middle of a file: through chained URLs, and filesystems that only
fsspec knows.

The reader goes on at the byte it reached, or reads the file again: each record comes once.
"""

import asyncio
import gc
import io
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

import streamrec
from streamrec import TFRecordDataset
from streamrec.storage import Storages, clients
from streamrec.storage.backends import s3
from streamrec.storage.clients import make_key
from tests.effort import thorough
from tests.servers.real import Store
from tests.storage.backends.hugging_face import REPOSITORY, hub
from tests.storage.backends.test_chained_urls import (
    FILES,
    HALF,
    RECORDS,
    TARRED,
    WHOLE,
    OnlyCatFile,
    SyncOnly,
    ftp_store,
    sftp_store,
    zipped,
)
from tests.storage.contract import QUICK_RETRIES, open_storage
from tests.storage.faultproxy import Fault, FaultProxy, Request

__all__ = ["ftp_store", "sftp_store"]

BREAKS = 2
"""How often a connection breaks: less often than a body is tried again without a byte of
progress."""


@asynccontextmanager
async def broken(upstream: str, at: int = 300_000) -> AsyncIterator[FaultProxy]:
    """A proxy in front of a server, which breaks the first long answers off; there must be so
    many.
    """
    faults = iter([Fault(cut=at)] * BREAKS)

    def choose(request: Request) -> Fault | None:
        is_long = request.method == "GET" and not request.path.startswith("/api/")
        return next(faults, None) if is_long else None

    async with FaultProxy(upstream, choose) as proxy:
        yield proxy
    assert next(faults, None) is None


async def read(url: str, options: dict[str, Any]) -> list[bytes]:
    return [
        record
        async for record in streamrec.TFRecordDataset(
            url, storage_options=options, retry=QUICK_RETRIES
        )
    ]


ARCHIVES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "zip": ("zip://a/x-0.tfrecord::", zipped),
    "tar": ("tar://a/x-0.tfrecord::", lambda: TARRED),
    "simplecache": ("simplecache::", lambda: WHOLE),
    "filecache": ("filecache::", lambda: WHOLE),
}


@pytest.mark.parametrize("kind", ["zip", "simplecache", *thorough("tar", "filecache")])
async def test_a_chain_over_http_survives_a_broken_connection(kind: str, http_store: Store) -> None:
    chain, make = ARCHIVES[kind]
    (http_store.directory / f"broken.{kind}").write_bytes(make())
    async with broken(http_store.endpoint) as proxy:
        assert await read(f"{chain}{proxy.url}/broken.{kind}", {}) == RECORDS


async def test_a_broken_read_from_hugging_face_goes_on() -> None:
    pytest.importorskip("huggingface_hub")
    with hub(FILES) as server:
        async with broken(server.endpoint) as proxy:
            options = {"endpoint": proxy.url, "token": False}
            assert await read(f"hf://datasets/{REPOSITORY}/a/x-0.tfrecord", options) == RECORDS


@pytest.mark.filterwarnings(
    "ignore:Sending a large body:ResourceWarning"
)  # azure-core's own way of uploading
async def test_a_broken_read_from_azure_goes_on(azure: Store) -> None:
    """Damage is found, too: the record before it is the last one read."""
    url, damaged = f"{azure.url}/broken.tfrecord", f"{azure.url}/damaged.tfrecord"
    await asyncio.to_thread(azure.put, {url: WHOLE, damaged: FILES["b/damaged.tfrecord"]})
    upstream = azure.endpoint.rpartition("/")[0]
    async with broken(upstream) as proxy:
        options = {
            "connection_string": azure.options["connection_string"].replace(upstream, proxy.url)
        }
        assert await read(url, options) == RECORDS
        with pytest.raises(streamrec.CorruptRecordError) as caught:
            await read(damaged, options)
        assert caught.value.path == damaged


LOSES: dict[str, Callable[[Any], object]] = {
    "ftp": lambda filesystem: filesystem.ftp.sock.shutdown(socket.SHUT_RDWR),
    "sftp": lambda filesystem: filesystem.client.get_transport().sock.close(),
    "sftp, its channel": lambda filesystem: filesystem.ftp.get_channel().close(),
}


@pytest.mark.parametrize("kind", LOSES)
async def test_servers_with_one_connection(kind: str, request: pytest.FixtureRequest) -> None:
    """The connection breaks in the middle of a body, and between requests, as servers close it
    after some minutes.
    """
    store: Store = request.getfixturevalue(f"{kind.partition(',')[0]}_store")
    url = f"{store.url}/a/x-0.tfrecord"
    async with open_storage(url) as storage:
        stream = await storage.stream(url)
        found, buffer = bytearray(), bytearray(100_000)
        for number in range(10**6):
            if number in (1, 15):
                LOSES[kind](storage._backend._fs)  # type: ignore[attr-defined]
            count = await stream.readinto(memoryview(buffer))
            if not count:
                break
            found += buffer[:count]
        await stream.aclose()
        assert bytes(found) == WHOLE
        for _ in range(3):
            LOSES[kind](storage._backend._fs)  # type: ignore[attr-defined]
            assert await storage.read_range(url, 1_000_000, 1_000_100) == WHOLE[1_000_000:1_000_100]
            assert [info.size async for info in storage.list(f"{store.url}/a/x-")] == [
                len(WHOLE),
                len(HALF),
            ]


READS: list[int] = []
"""One for each read of the filesystems below."""


def note_read(*failing: int) -> None:
    READS.append(len(READS) + 1)
    if READS[-1] in failing:
        raise ConnectionResetError("the connection broke")


class BreakingFile(io.BytesIO):
    """A file, of which some reads fail."""

    def read(self, size: int | None = -1) -> bytes:
        note_read(2, 4)
        return super().read(size)


class BreakingSync(SyncOnly):
    protocol = "breakingsync"

    def _open(self, path: str, *_: Any, **__: Any) -> Any:
        return BreakingFile(FILES[self._strip_protocol(path)])


class BreakingCat(OnlyCatFile):
    protocol = "breakingcat"

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **more: Any
    ) -> bytes:
        note_read(1, 2)
        return await super()._cat_file(path, start, end, **more)


@pytest.mark.parametrize(
    "url", ["breakingsync://a/x-0.tfrecord", "breakingcat://a/x-0.tfrecord", "dir"]
)
async def test_unknown_filesystems(url: str, tmp_path: Path) -> None:
    READS.clear()
    fsspec.register_implementation("breakingsync", BreakingSync, clobber=True)
    fsspec.register_implementation("breakingcat", BreakingCat, clobber=True)
    if url == "dir":
        url = "dir://x-0.tfrecord::breakingsync://a"
    assert await read(url, {}) == RECORDS
    assert len(READS) > 2


Stored = tuple[str, dict[str, Any], list[Any]]
"""A small object's URL, options that no other test uses, and the clients of S3 that are made from
now on."""


@pytest.fixture
def stored(s3_store: Store, monkeypatch: pytest.MonkeyPatch) -> Stored:
    options = {
        **s3_store.options,
        "username": None,
        "config_kwargs": {"user_agent_extra": uuid4().hex},
    }
    url = f"{s3_store.url}/{uuid4().hex}"
    s3_store.put({url: streamrec.encode_records([b"one"])})
    made: list[Any] = []
    connect = s3.connect

    async def counted(*args: Any) -> Any:
        made.append(await connect(*args))
        return made[-1]

    monkeypatch.setattr(s3, "connect", counted)
    return url, options, made


async def records_of(url: str, options: Any) -> list[bytes]:
    async with streamrec.open_shard(url, storage_options=options) as shard:
        return [record async for record in shard]


def test_a_service_has_one_client(stored: Stored) -> None:
    url, options, made = stored

    async def serve() -> None:
        for _ in range(3):
            assert await records_of(url, dict(options)) == [b"one"]
        several = await asyncio.gather(*(records_of(url, dict(options)) for _ in range(200)))
        assert several == [[b"one"]] * 200
        async with streamrec.ShardWriter(f"{url}-more", storage_options=options) as writer:
            await writer.write(b"two")
        assert [record async for record in TFRecordDataset(f"{url}*", storage_options=options)] == [
            b"one",
            b"two",
        ]
        assert len(made) == 1

    asyncio.run(serve())
    assert is_closed(made[0])


def test_other_options_have_another_client(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    url, options, made = stored

    async def several() -> None:
        await records_of(url, options)
        await records_of(url, {**options, "use_ssl": False})
        monkeypatch.setenv("AWS_REGION", "eu-west-3")
        await records_of(url, options)
        assert len(made) == 3

    asyncio.run(several())


def test_loops_have_clients_of_their_own(stored: Stored) -> None:
    url, options, made = stored
    for _ in range(2):
        asyncio.run(records_of(url, options))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: asyncio.run(records_of(url, options)), range(2)))
    assert len(made) == 4
    assert all(is_closed(backend) for backend in made)
    gc.collect()


def is_closed(backend: Any) -> bool:
    sessions = backend._fs._s3._endpoint.http_session._sessions
    return not sessions


def test_an_unused_client_is_closed(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not while it is used, and not if it is used again in time."""
    url, options, made = stored
    later: list[Callable[[], Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def noted(delay: float, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if delay == clients.IDLE:
                later.append(partial(callback, *args))
            return call_later(delay, callback, *args, **kwargs)

        monkeypatch.setattr(loop, "call_later", noted)
        async with Storages(options) as storages:
            await storages.at(url)
            await records_of(url, options)
            assert later == []
        [idle] = later
        await records_of(url, options)
        assert len(made) == 1
        idle()  # an earlier timer, which was cancelled because the client was used again
        await records_of(url, options)
        later[-1]()
        closing = [
            task for task in asyncio.all_tasks() if task.get_name() == "streamrec closes a client"
        ]
        await asyncio.gather(*closing)
        assert any(is_closed(backend) for backend in made)
        await records_of(url, options)

    asyncio.run(main())
    assert len(made) >= 2


async def test_a_client_that_cannot_be_made_is_not_kept(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options, _ = stored
    connect, fails = s3.connect, [True]

    async def sometimes(*args: Any) -> Any:
        if fails.pop() if fails else False:
            raise OSError("not today")
        return await connect(*args)

    monkeypatch.setattr(s3, "connect", sometimes)
    with pytest.raises(streamrec.StorageError, match="not today"):
        await records_of(url, options)
    assert await records_of(url, options) == [b"one"]


def test_keys_tell_options_apart() -> None:
    class Credentials:
        pass

    one, other = Credentials(), Credentials()
    assert make_key({"token": one})[0] != make_key({"token": other})[0]
    assert (
        make_key({"token": one, "a": [1, {"b": None}]})[0]
        == make_key({"a": [1, {"b": None}], "token": one})[0]
    )
    assert make_key({"a": 1})[0] != make_key({"a": "1"})[0]
    assert make_key({"token": one})[1] == (one,)
