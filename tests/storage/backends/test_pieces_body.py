"""Bodies: sent from their pieces, as a file or through any client; and received into buffers."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streamrec.storage import Storages, backend
from streamrec.storage.backend import FastPath
from streamrec.storage.backends.http import pieces_body
from streamrec.storage.backends.http.pieces_body import CHUNK_BYTES, PiecesBody
from streamrec.storage.backends.http.socket_body import SocketBody
from tests.servers.faults import Faults
from tests.servers.objectstore import ObjectStore, serve_objects
from tests.servers.real import Store
from tests.storage.contract import (
    QUICK_RETRIES,
    note_requests,
    open_storage,
    read_all,
    signed_body,
    write_object,
)

PART = 5 << 20


def unreadable(*_: Any) -> bytes:
    raise LookupError("no such attribute")


async def damaging(body: PiecesBody, writer: Any) -> None:
    """The right number of other bytes."""
    await writer.write(bytes(body.size))


BREAKS: dict[str, tuple[object, str, object]] = {
    "sending": (pieces_body, "CHUNK_BYTES", "no number"),
    "signing": (PiecesBody, "read", unreadable),
    "damage": (PiecesBody, "write", damaging),
}


@pytest.mark.parametrize("case", BREAKS)
@pytest.mark.parametrize("size", [1_000, 3 * PART + 17])
async def test_a_client_that_does_not_take_it_gets_a_file(
    s3_store: Store,
    case: str,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No upload fails; it is said once, counted once, and not tried again."""
    monkeypatch.setattr(*BREAKS[case])
    monkeypatch.setattr(backend, "_logged", set())
    data = os.urandom(size)
    async with open_storage(s3_store.url, s3_store.options) as storage:
        for _ in range(2):
            path = f"{s3_store.url}/{uuid4().hex}"
            await write_object(storage, path, data, part_size=PART)
            assert await read_all(await storage.stream(path)) == data
        assert storage._backend._sending.fallbacks == 1  # type: ignore[attr-defined]
    warnings = [
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    ]
    assert len([warning for warning in warnings if warning.startswith("sending bodies")]) == 1


@pytest.mark.parametrize("by_environment", [True, False])
@pytest.mark.parametrize("signs", [True, False])
async def test_over_plain_http_bodies_are_signed_unless_told_otherwise(
    moto_store: Store, signs: bool, by_environment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By botocore's own setting, for any source of the endpoint."""
    options = dict(moto_store.options)
    if by_environment:
        monkeypatch.setenv("AWS_ENDPOINT_URL", options.pop("endpoint_url"))
    if not signs:
        options["config_kwargs"] = {"s3": {"payload_signing_enabled": False}}
    async with open_storage(moto_store.url, options) as storage:
        said = note_requests(storage, "before-send.s3.PutObject", signed_body)
        path, data = f"{moto_store.url}/{uuid4().hex}", os.urandom(1_000)
        await write_object(storage, path, data)
        assert await read_all(await storage.stream(path)) == data
    assert [value == "UNSIGNED-PAYLOAD" for value in said] == [not signs]


async def test_cancelling_sends_no_more(moto_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload is cancelled in the middle of a body: nothing is stored, and the client works
    on.
    """
    begun = asyncio.Event()

    async def held(body: PiecesBody, writer: Any) -> None:
        await writer.write(body.read(CHUNK_BYTES))
        begun.set()
        await asyncio.Event().wait()

    async with Storages(moto_store.options, retry=QUICK_RETRIES) as storages:
        storage = await storages.at(moto_store.url)
        path = f"{moto_store.url}/{uuid4().hex}"

        async def write() -> None:
            await write_object(storage, path, os.urandom(3 * PART), part_size=PART)

        with monkeypatch.context() as patched:
            patched.setattr(PiecesBody, "write", held)
            task = asyncio.create_task(write())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await write()
        assert (await storage.stat(path)).size == 3 * PART
        assert storages.statistics.snapshot().backends["s3"].fallbacks == 0


DATA = bytes(range(256)) * 2_000


@asynccontextmanager
async def landed(
    size: int = len(DATA),
) -> AsyncIterator[tuple[SocketBody, asyncio.Transport, asyncio.StreamWriter]]:
    """A landing, its transport, and the other end of the connection."""
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(
        lambda _, writer: accepted.set_result(writer), "127.0.0.1", 0
    )
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
    """Runs the loop until reading is switched off again."""
    async with asyncio.timeout(30):
        while transport.is_reading():  # noqa: ASYNC110 (asyncio has no event for it)
            await asyncio.sleep(0)


async def test_bytes_that_asyncio_reads_on_its_own_are_kept() -> None:
    """As when aiohttp switches reading on for an earlier response of the same connection."""
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
async def test_no_byte_is_lost_when_the_kernel_gathers(step: int) -> None:
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


async def test_a_few_bytes_are_delivered_soon_each_time() -> None:
    async with landed() as (body, _, writer), asyncio.timeout(30):
        for start in range(0, 50, 10):
            reading = asyncio.create_task(read(body, 100_000))
            await asyncio.sleep(0)
            writer.write(DATA[start : start + 10])
            assert await reading == DATA[start : start + 10]


async def test_the_loop_does_not_watch_a_body_that_is_not_read() -> None:
    """It would turn and turn while the consumer pauses."""
    async with landed() as (body, _, writer), asyncio.timeout(30):
        got = b""
        for _ in range(2):
            reading = asyncio.create_task(read(body, 1_000))
            await asyncio.sleep(0)
            writer.write(DATA[len(got) : len(got) + 2_000])
            got += await reading
            while body._socket._watched:  # noqa: ASYNC110 (asyncio has no event for it)
                await asyncio.sleep(0)
            got += await read(body, 1_000)
        assert got == DATA[:4_000]


async def test_nothing_is_written_after_a_cancelled_read() -> None:
    async with landed() as (body, _, writer), asyncio.timeout(30):
        buffer = bytearray(100_000)
        reading = asyncio.create_task(body.readinto(memoryview(buffer)))
        await asyncio.sleep(0)
        writer.write(DATA[:10])
        while not buffer[9]:  # noqa: ASYNC110 (asyncio has no event for it)
            await asyncio.sleep(0)
        reading.cancel()
        writer.write(DATA[10:20])
        with pytest.raises(asyncio.CancelledError):
            await reading
        while body._socket._watched:  # noqa: ASYNC110 (asyncio has no event for it)
            await asyncio.sleep(0)
        assert not any(buffer[10:])


OBJECT = os.urandom(24 << 20)
UNHEDGED = replace(QUICK_RETRIES, hedge_share=0.0, hedge_allowance=0)
"""A second request has a connection of its own."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ObjectStore]:
    with serve_objects(tmp_path, {"object": OBJECT}, Faults(first_byte=0, jitter=0)) as server:
        yield server


@pytest.mark.parametrize("scheme", ["s3", "gs", "http"])
async def test_a_connection_serves_one_request_after_another(
    server: ObjectStore, scheme: str
) -> None:
    """Bodies of every size that are read to their end; one that is closed before costs its
    connection alone.
    """
    path = server.url_of(scheme, "bucket/object")
    async with open_storage(path, server.options(scheme), UNHEDGED) as storage:

        async def reader(number: int) -> None:
            for turn, size in enumerate([3 << 20, 100_000, 5 << 20, (1 << 20) + 1, 2 << 20, 7]):
                start = (number * 7 + turn) * 100_003
                assert (
                    await read_all(await storage.stream(path, start, start + size), 700_001)
                    == (OBJECT[start : start + size])
                )

        await reader(0)
        server.wait_idle()
        assert len({entry.connection for entry in server.log}) == 1
        await asyncio.gather(*map(reader, range(8)))
        server.wait_idle()
        assert len({entry.connection for entry in server.log}) <= 8
        left = await storage.stream(path, 0, 20 << 20)
        assert await left.readinto(memoryview(bytearray(2 << 20)))
        await left.aclose()
        await asyncio.gather(*map(reader, range(8)))
        server.wait_idle()
        assert len({entry.connection for entry in server.log}) <= 9
