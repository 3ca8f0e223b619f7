"""Bodies that end early, and the requests ahead: each byte once and in order, nothing left behind."""

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ObjectChangedError
from streamrec.storage.reading.connections import Connections
from streamrec.storage.reading.parallel_stream import open_parallel
from streamrec.storage.reading.stream import ResumingStream
from tests.effort import draws
from tests.storage.contract import read_all
from tests.storage.reading.scattered import Scattered, landing, request_of

MIB = 1 << 20
DATA = os.urandom(13 * MIB + 12_345)


async def opened(backend: Scattered, start: int = 0, end: int | None = None) -> ResumingStream:
    stream = request_of(backend)(start, end, None)
    await stream.open()
    return stream


def check_nothing_is_left(backend: Scattered) -> None:
    assert landing() == []
    assert [task for task in asyncio.all_tasks() if task.get_name() == "streamrec request ahead"] == []
    assert all(asked.closed for asked in backend.log)


@draws(20)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.2, 0.5]),
    st.sampled_from([300_000, MIB, 4 * MIB]),
    st.sampled_from([0, 3, 5 * MIB]),
    st.sampled_from([None, 12 * MIB, 10**9]),
    st.sampled_from([100_000, MIB, 3 * MIB]),
)
def test_every_byte_once_and_in_order(
    seed: int, broken: float, most: int, start: int, end: int | None, step: int
) -> None:
    async def run() -> None:
        backend = Scattered(DATA, seed, broken, most=most)
        assert await read_all(await opened(backend, start, end), step) == DATA[start:end]
        if not broken:
            assert [asked.start for asked in backend.log] == list(range(start, min(len(DATA), end or len(DATA)), most))
        check_nothing_is_left(backend)

    asyncio.run(run())


@draws(10)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.2]), st.sampled_from([MIB, 4 * MIB, 9 * MIB]))
def test_beside_parallel_ranges(seed: int, broken: float, most: int) -> None:
    async def run() -> None:
        connections, backend = Connections(24 * MIB), Scattered(DATA, seed, broken, most=most)
        assert await read_all(await open_parallel(request_of(backend), connections, 0, None, None)) == DATA
        assert connections.budget.held == 0
        check_nothing_is_left(backend)

    asyncio.run(run())


@draws(20)
@given(st.integers(0, 2**32), st.integers(0, 300))
def test_a_cancellation_leaves_nothing(seed: int, turns: int) -> None:
    async def run() -> None:
        backend = Scattered(DATA, seed, broken=0.2, most=MIB)
        stream = await opened(backend)
        reading = asyncio.create_task(read_all(stream))
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stream.aclose()
        check_nothing_is_left(backend)

    asyncio.run(run())


@pytest.mark.parametrize("requests", [1, 2, 5])
async def test_a_changed_object_is_an_error_behind_all_bytes_before_it(requests: int) -> None:
    backend = Scattered(DATA, changes_at=requests, most=2 * MIB)
    stream, got, buffer = await opened(backend), bytearray(), memoryview(bytearray(MIB))
    with pytest.raises(ObjectChangedError) as caught:
        while count := await stream.readinto(buffer):
            got += buffer[:count]
    assert caught.value.offset == len(got) == requests * 2 * MIB
    assert got == DATA[: len(got)]
    check_nothing_is_left(backend)


async def test_the_next_bytes_are_asked_for_while_a_body_is_read() -> None:
    backend = Scattered(DATA, most=4 * MIB)
    stream = await opened(backend)
    while stream.position <= MIB:
        assert len(backend.log) == 1, "who reads the head of an object needs no second request"
        await stream.readinto(memoryview(bytearray(MIB)))
    while len(backend.log) < 2:
        await stream.readinto(memoryview(bytearray(1)))
    assert stream.position < 4 * MIB
    assert backend.log[1].start == 4 * MIB
    await stream.aclose()
    check_nothing_is_left(backend)


async def test_a_stream_that_is_cut_short_needs_none() -> None:
    backend = Scattered(DATA, most=4 * MIB)
    stream = await opened(backend)
    while len(backend.log) < 2:
        await stream.readinto(memoryview(bytearray(MIB)))
    end = stream.position + 100
    stream.cut(end)
    await stream.readinto(memoryview(bytearray(1)))
    assert backend.log[1].closed
    assert await read_all(stream) == DATA[end - 99 : end]
    check_nothing_is_left(backend)
