"""Landing, on a connection of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from streamrec.storage.backends.http.buffered_body import BufferedBody

DATA = bytes(range(256)) * 2_000


@asynccontextmanager
async def landed(size: int = len(DATA)) -> AsyncIterator[tuple[BufferedBody, asyncio.Transport, asyncio.StreamWriter]]:
    """A landing, its transport, and the other end of the connection."""
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    transport, handler = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
    buffered = BufferedBody(transport, handler, size)
    transport.pause_reading()
    transport.set_protocol(buffered)
    writer = await accepted
    try:
        yield buffered, transport, writer
    finally:
        transport.close()
        writer.close()
        server.close()


async def read(buffered: BufferedBody, size: int) -> bytes:
    buffer = bytearray(size)
    return bytes(buffer[: await buffered.readinto(memoryview(buffer))])


async def until_paused(transport: asyncio.Transport) -> None:
    """Lets the loop turn until what was switched on is off again."""
    async with asyncio.timeout(30):
        while transport.is_reading():  # noqa: ASYNC110 (asyncio has no event for it)
            await asyncio.sleep(0)


async def test_bytes_land_in_order() -> None:
    async with landed() as (buffered, _, writer):
        writer.write(DATA)
        got = b"".join([await read(buffered, 70_001) for _ in range(5)])
        assert got == DATA[: len(got)]
        while more := await read(buffered, 1 << 20):
            got += more
        assert got == DATA


async def test_what_comes_while_nobody_waits_is_kept() -> None:
    """As where aiohttp switches the reading on, for an earlier response of the same connection."""
    async with landed() as (buffered, transport, writer):
        writer.write(DATA)
        got = await read(buffered, 1_000)
        for size in (10, 100_000, 1 << 20):
            for _ in range(2):
                transport.resume_reading()
                await until_paused(transport)
            got += await read(buffered, size)
        while more := await read(buffered, 1 << 20):
            got += more
        assert got == DATA


@pytest.mark.parametrize("step", [64 << 10, 300_000, 1 << 20])
async def test_no_byte_stays_behind_when_the_kernel_gathers(step: int) -> None:
    """What is left of a body at its end, or of a buffer, is less than the kernel waits for."""
    data = DATA * 4 + b"the end"
    async with landed(len(data)) as (buffered, _, writer), asyncio.timeout(30):

        async def drip() -> None:
            for start in range(0, len(data), 50_000):
                writer.write(data[start : start + 50_000])
                await writer.drain()
                await asyncio.sleep(0)

        dripping = asyncio.create_task(drip())
        got = b""
        while more := await read(buffered, step):
            got += more
        assert got == data
        await dripping


async def test_a_connection_that_ends_early() -> None:
    async with landed() as (buffered, transport, writer):
        writer.write(DATA[:500])
        writer.write_eof()
        transport.resume_reading()
        await until_paused(transport)
        assert await read(buffered, 1 << 20) == DATA[:500]
        with pytest.raises(ConnectionError, match="before the body"):
            await read(buffered, 1 << 20)
