"""Connections that break in the middle of a file: through chained URLs, and filesystems that only fsspec knows.

The reader goes on at the byte it reached, or reads the file again: each record comes once.
"""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest

import streamrec
from streamrec.storage import Storages
from tests.effort import thorough
from tests.servers.real import Store
from tests.storage.backends.hugging_face import REPOSITORY, hub
from tests.storage.backends.test_chained_urls import (
    FILES,
    RECORDS,
    WHOLE,
    OnlyCatFile,
    SyncOnly,
    ftp_store,
    put,
    sftp_store,
    tarred,
    zipped,
)
from tests.storage.contract import QUICK
from tests.storage.faultproxy import Fault, FaultProxy, Request

__all__ = ["ftp_store", "sftp_store"]

BREAKS = 2
"""How often a connection breaks: less often than a body is tried again without a byte of progress."""


class Breaking:
    """What a proxy does: it breaks the first answers off that are long."""

    def __init__(self, at: int) -> None:
        self.left = BREAKS
        self.at = at

    def __call__(self, request: Request) -> Fault | None:
        if request.method != "GET" or not self.left or request.path.startswith("/api/"):
            return None
        self.left -= 1
        return Fault(cut=self.at)


async def read(url: str, options: dict[str, Any]) -> list[bytes]:
    return [record async for record in streamrec.TFRecordDataset(url, storage_options=options, retry=QUICK)]


@asynccontextmanager
async def broken(upstream: str, at: int = 300_000) -> AsyncIterator[tuple[FaultProxy, Breaking]]:
    """A proxy in front of a server, which breaks some answers off."""
    breaking = Breaking(at)
    async with FaultProxy(upstream, breaking) as proxy:
        yield proxy, breaking


ARCHIVES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "zip": ("zip://a/x-0.tfrecord::", zipped),
    "tar": ("tar://a/x-0.tfrecord::", lambda: tarred("w")),
    "simplecache": ("simplecache::", lambda: WHOLE),
    "filecache": ("filecache::", lambda: WHOLE),
}


@pytest.mark.parametrize("kind", ["zip", "simplecache", *thorough("tar", "filecache")])
async def test_a_chain_over_http(kind: str, http_store: Store) -> None:
    chain, make = ARCHIVES[kind]
    (http_store.directory / f"broken.{kind}").write_bytes(make())
    async with broken(http_store.endpoint) as (proxy, breaking):
        assert await read(f"{chain}{proxy.url}/broken.{kind}", {}) == RECORDS
    assert not breaking.left


async def test_hugging_face() -> None:
    pytest.importorskip("huggingface_hub")
    with hub(FILES) as server:
        async with broken(server.endpoint) as (proxy, breaking):
            options = {"endpoint": proxy.url, "token": False}
            assert await read(f"hf://datasets/{REPOSITORY}/a/x-0.tfrecord", options) == RECORDS
        assert not breaking.left


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # azure-core's own way of uploading
async def test_azure(azure: Store) -> None:
    """Also what is damaged: the record before it is the last that comes."""
    url = await put(azure, "broken.tfrecord", WHOLE)
    damaged = await put(azure, "damaged.tfrecord", FILES["b/damaged.tfrecord"])
    upstream = azure.endpoint.rpartition("/")[0]
    async with broken(upstream) as (proxy, breaking):
        options = {"connection_string": azure.options["connection_string"].replace(upstream, proxy.url)}
        assert await read(url, options) == RECORDS
        assert not breaking.left
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
    store: Store = request.getfixturevalue(f"{kind.partition(',')[0]}_store")
    url = f"{store.url}/a/x-0.tfrecord"
    async with Storages(retry=QUICK) as storages:
        storage = await storages.at(url)
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


class Breaks:
    """Reads of a filesystem, of which some fail."""

    reads: ClassVar[list[int]] = []

    @classmethod
    def check(cls, *failing: int) -> None:
        cls.reads.append(0)
        if len(cls.reads) in failing:
            raise ConnectionResetError("the connection broke")


class BreakingFile:
    """A file, of which some reads fail."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        Breaks.check(2, 4)
        data: bytes = self._file.read(size)
        return data


class BreakingSync(SyncOnly):
    protocol = "breakingsync"

    def _open(self, path: str, *rest: Any, **more: Any) -> Any:
        return BreakingFile(super()._open(self._strip_protocol(path), *rest, **more))


class BreakingCat(OnlyCatFile):
    protocol = "breakingcat"

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        Breaks.check(1, 2)
        return await super()._cat_file(path, start, end, **more)


@pytest.mark.parametrize("url", ["breakingsync://a/x-0.tfrecord", "breakingcat://a/x-0.tfrecord", "dir"])
async def test_filesystems_that_nobody_knows(url: str, tmp_path: Path) -> None:
    Breaks.reads.clear()
    options: dict[str, Any] = {}
    fsspec.register_implementation("breakingsync", BreakingSync, clobber=True)
    fsspec.register_implementation("breakingcat", BreakingCat, clobber=True)
    if url == "dir":
        url = "dir://x-0.tfrecord::breakingsync://a"
    assert await read(url, options) == RECORDS
    assert len(Breaks.reads) > 2
