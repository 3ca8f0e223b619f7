"""Landing, on a connection of its own; and connections that serve one request after another."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamrec.storage import Storages
from streamrec.storage.backend import FastPath
from streamrec.storage.backends.http.socket_body import SocketBody
from tests.servers.faults import Faults
from tests.servers.objectstore import ObjectStore
from tests.storage.contract import QUICK, read_all

DATA = bytes(range(256)) * 2_000


@asynccontextmanager
async def landed(size: int = len(DATA)) -> AsyncIterator[tuple[SocketBody, asyncio.Transport, asyncio.StreamWriter]]:
    """A landing, its transport, and the other end of the connection."""
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
    body = SocketBody(transport, size, lambda: None, FastPath("receiving bodies"))
    writer = await accepted
    try:
        yield body, transport, writer
    finally:
        transport.close()
        writer.close()
        server.close()


async def read(body: SocketBody, size: int) -> bytes:
    buffer = bytearray(size)
    return bytes(buffer[: await body.readinto(memoryview(buffer))])


async def until_paused(transport: asyncio.Transport) -> None:
    """Lets the loop turn until what was switched on is off again."""
    async with asyncio.timeout(30):
        while transport.is_reading():  # noqa: ASYNC110 (asyncio has no event for it)
            await asyncio.sleep(0)


async def test_bytes_land_in_order() -> None:
    async with landed() as (body, _, writer):
        writer.write(DATA)
        got = b"".join([await read(body, 70_001) for _ in range(5)])
        assert got == DATA[: len(got)]
        while more := await read(body, 1 << 20):
            got += more
        assert got == DATA


async def test_what_asyncio_reads_nevertheless_is_kept() -> None:
    """As where aiohttp switches the reading on, for an earlier response of the same connection."""
    data = DATA * 8
    async with landed(len(data)) as (body, transport, writer):
        writer.write(data)
        got = await read(body, 1_000)
        for size in (10, 100_000, 1 << 20):
            for _ in range(2):
                transport.resume_reading()
                await until_paused(transport)
            got += await read(body, size)
        while more := await read(body, 1 << 20):
            got += more
        assert got == data


@pytest.mark.parametrize("step", [64 << 10, 300_000, 1 << 20])
async def test_no_byte_stays_behind_when_the_kernel_gathers(step: int) -> None:
    """What is left of a body at its end, or of a buffer, is less than the kernel waits for."""
    data = DATA * 4 + b"the end"
    async with landed(len(data)) as (body, _, writer), asyncio.timeout(30):

        async def drip() -> None:
            for start in range(0, len(data), 50_000):
                writer.write(data[start : start + 50_000])
                await writer.drain()
                await asyncio.sleep(0)

        dripping = asyncio.create_task(drip())
        got = b""
        while more := await read(body, step):
            got += more
        assert got == data
        await dripping


async def test_a_connection_that_ends_early() -> None:
    async with landed() as (body, transport, writer):
        writer.write(DATA[:500])
        writer.write_eof()
        transport.resume_reading()
        await until_paused(transport)
        assert await read(body, 1 << 20) == DATA[:500]
        with pytest.raises(ConnectionError, match="before the body"):
            await read(body, 1 << 20)


OBJECT = os.urandom(24 << 20)
UNHEDGED = replace(QUICK, hedge_share=0.0, hedge_allowance=0)
"""A second request has a connection of its own."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "object").write_bytes(OBJECT)
    with ObjectStore(tmp_path, faults=Faults(first_byte=0, jitter=0)) as store:
        yield store


@pytest.mark.parametrize("scheme", ["s3", "gs", "http"])
async def test_a_connection_serves_one_request_after_another(store: ObjectStore, scheme: str) -> None:
    """Bodies of every size that are read to their end; one that is closed before costs its connection alone."""
    options: dict[str, dict[str, Any]] = {
        "s3": {"endpoint_url": store.url, "anon": True},
        "gs": {"endpoint_url": store.url, "token": "anon", "project": "p"},
        "http": {},
    }
    path = f"{store.url}/bucket/object" if scheme == "http" else f"{scheme}://bucket/object"
    async with Storages(options[scheme], retry=UNHEDGED) as storages:
        storage = await storages.at(path)

        async def reader(number: int) -> None:
            for turn, size in enumerate([3 << 20, 100_000, 5 << 20, (1 << 20) + 1, 2 << 20, 7]):
                start = (number * 7 + turn) * 100_003
                assert (
                    await read_all(await storage.stream(path, start, start + size), 700_001)
                    == (OBJECT[start : start + size])
                )

        await reader(0)
        store.wait_idle()
        assert len({entry.connection for entry in store.log}) == 1
        await asyncio.gather(*map(reader, range(8)))
        store.wait_idle()
        assert len({entry.connection for entry in store.log}) <= 8
        left = await storage.stream(path, 0, 20 << 20)
        assert await left.readinto(memoryview(bytearray(2 << 20)))
        await left.aclose()
        await asyncio.gather(*map(reader, range(8)))
        store.wait_idle()
        assert len({entry.connection for entry in store.log}) <= 9
