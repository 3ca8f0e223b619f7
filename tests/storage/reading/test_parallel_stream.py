"""Parallel ranges, the driver: in order, each byte once, errors in order, nothing left behind."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ClosedError, ObjectChangedError, PermissionDeniedError, StorageError
from streamrec.shards import ShardReader
from streamrec.storage import RetryPolicy, Storages
from streamrec.storage.backend import BLOCK_BYTES, Body
from streamrec.storage.connections import Connections
from streamrec.storage.hedging import Hedging
from streamrec.storage.knee_search import KneeSearch
from streamrec.storage.parallel_stream import SLOW_REST, ParallelStream, open_parallel
from streamrec.storage.range_buffer import BlockRoom, RangeBuffer, RangeState
from streamrec.storage.traffic import Traffic
from streamrec.tfrecord import encode_records
from tests.effort import drawn_examples
from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.objectstore import ObjectStore
from tests.storage.contract import read_all, wait_until
from tests.storage.reading.scattered import Scattered, fetching_tasks, request_of
from tests.storage.reading.test_range_plan import Clock

MIB = 1 << 20
DATA = os.urandom(28 * MIB + 12_345)
LARGE = DATA * 3
BUDGET = 24 * MIB


async def opened(
    backend: Scattered,
    connections: Connections | None = None,
    start: int = 0,
    end: int | None = None,
    traffic: Traffic | None = None,
) -> ParallelStream:
    stream = await open_parallel(
        request_of(backend, traffic), connections or Connections(BUDGET), start, end, None
    )
    assert isinstance(stream, ParallelStream)
    return stream


async def read_up_to_an_error(stream: ParallelStream) -> tuple[bytes, StorageError]:
    got, buffer = bytearray(), memoryview(bytearray(MIB))
    with pytest.raises(StorageError) as caught:
        while count := await stream.readinto(buffer):
            got += buffer[:count]
    return bytes(got), caught.value


def check_nothing_is_left(backend: Scattered, connections: Connections) -> None:
    assert fetching_tasks() == []
    assert all(asked.closed for asked in backend.log)
    assert connections.room.held == 0


@drawn_examples(15)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.2, 0.5]),
    st.sampled_from([0, 3, 5 * MIB]),
    st.sampled_from([None, 27 * MIB, 10**9]),
    st.sampled_from([100_000, MIB, 3 * MIB]),
)
def test_every_byte_once_and_in_order(
    seed: int, broken: float, start: int, end: int | None, step: int
) -> None:
    async def run() -> None:
        connections = Connections(BUDGET)
        backend = Scattered(DATA, seed, broken)
        most = 0

        def watch() -> None:
            nonlocal most
            most = max(most, connections.room.held)

        backend.watch = watch
        stream = await opened(backend, connections, start, end)
        assert await read_all(stream, step) == DATA[start:end]
        assert 0 < most <= BUDGET
        check_requests(backend, start, end, broken)
        check_nothing_is_left(backend, connections)

    asyncio.run(run())


def check_requests(
    backend: Scattered, start: int, end: int | None, broken: float, size: int = len(DATA)
) -> None:
    """The delivered ranges are adjacent: no byte came twice, and without faults none was requested
    twice.
    """
    given = sorted((asked.start, asked.start + asked.given) for asked in backend.log if asked.given)
    assert given[0][0] == start
    assert given[-1][1] == min(size, end or size)
    assert all(first[1] == second[0] for first, second in pairwise(given))
    assert len(given) > 3
    if not broken:
        assert len(backend.log) == len(given)
        assert len(given) <= 2 + (given[-1][1] - start) / (3 * MIB) + 16


async def test_an_error_comes_after_all_bytes_before_it() -> None:
    connections = Connections(BUDGET)
    backend = Scattered(DATA, fails=(20 * MIB, PermissionDeniedError("no", "memory://x", 20 * MIB)))
    stream = await opened(backend, connections)
    got, error = await read_up_to_an_error(stream)
    assert isinstance(error, PermissionDeniedError)
    assert got == DATA[: stream.position]
    assert len(got) >= 20 * MIB
    with pytest.raises(ClosedError):
        await stream.readinto(memoryview(bytearray(1)))
    assert sum(asked.start >= 20 * MIB for asked in backend.log) <= 16, (
        "nothing further is asked for"
    )
    check_nothing_is_left(backend, connections)


@pytest.mark.parametrize("requests", [1, 2, 5])
async def test_a_changed_object_is_an_error_and_never_a_mixture(requests: int) -> None:
    connections = Connections(BUDGET)
    backend = Scattered(DATA, changes_at=requests)
    got, error = await read_up_to_an_error(await opened(backend, connections))
    assert isinstance(error, ObjectChangedError)
    assert got == DATA[: error.offset]
    check_nothing_is_left(backend, connections)


@drawn_examples(15)
@given(st.integers(0, 2**32), st.integers(0, 600))
def test_a_cancellation_leaves_nothing(seed: int, turns: int) -> None:
    async def run() -> None:
        connections = Connections(BUDGET)
        backend = Scattered(DATA, seed, broken=0.2)
        stream = await opened(backend, connections)
        reading = asyncio.create_task(read_all(stream))
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stream.aclose()
        check_nothing_is_left(backend, connections)

    asyncio.run(run())


async def test_the_rest_of_a_range_that_flows_slowly_is_asked_for_by_others() -> None:
    clock = Clock()
    connections = Connections(len(LARGE), KneeSearch(start=4, most=4), clock)
    backend = Scattered(LARGE, dries_up=100_000)
    relieved = asyncio.Event()

    def watch() -> None:
        clock.now += 0.01
        slow = backend.waits
        if slow and any(slow.start < asked.start < (slow.end or 0) for asked in backend.log):
            relieved.set()

    backend.watch = watch
    traffic = Traffic(
        hedging=Hedging(RetryPolicy(hedge_share=1.0, first_byte_timeout=200.0, stall_timeout=200.0))
    )
    reading = asyncio.create_task(read_all(await opened(backend, connections, traffic=traffic)))
    await asyncio.wait_for(relieved.wait(), 30)
    slow = backend.waits
    assert slow is not None
    rest = [asked.start for asked in backend.log if slow.start < asked.start < (slow.end or 0)]
    assert max(asked.end or 0 for asked in backend.log) < len(LARGE), "others are still to come"
    assert min(rest) == slow.start + slow.given + SLOW_REST
    backend.answered.set()
    assert await reading == LARGE
    assert slow.given > SLOW_REST, "it delivered more than it had to"
    assert traffic.tally.counts().hedges >= 1
    check_nothing_is_left(backend, connections)


async def test_a_range_that_waits_for_room_is_not_slow() -> None:
    clock = Clock()
    connections = Connections(4 * BLOCK_BYTES, clock=clock)
    backend = Scattered(LARGE, dries_up=3 * BLOCK_BYTES + 1)
    share = connections.join()
    room = BlockRoom(connections, share, promised=4 * BLOCK_BYTES)
    piece = RangeBuffer(request_of(backend)(0, len(LARGE), None), connections, room, len(LARGE))

    def others_give_much() -> None:
        clock.now += 100
        connections.average.received += 1 << 30

    assert connections.promise(share, 4 * BLOCK_BYTES)
    piece.begin(lambda: None)
    await wait_until(lambda: piece.state is RangeState.WAITING_FOR_ROOM)
    others_give_much()
    assert not piece.is_slow(clock.now)
    await piece.readinto(memoryview(bytearray(BLOCK_BYTES)))
    assert piece.feed()
    await wait_until(lambda: backend.waits is not None)
    assert not piece.is_slow(clock.now)
    others_give_much()
    assert piece.is_slow(clock.now)
    backend.answered.set()
    assert piece.task is not None
    await piece.task
    while piece._blocks or piece.error:
        await piece.readinto(memoryview(bytearray(BLOCK_BYTES)))
    await piece.aclose()
    connections.leave(share)
    check_nothing_is_left(backend, connections)


async def test_a_range_is_busy_until_its_rest_comes_within_the_latency_of_the_next() -> None:
    connections = Connections(64 * BLOCK_BYTES, clock=Clock())
    lead = connections.pace.lead
    for _ in range(3):  # as if requests had been answered, since the clock stands still
        connections.record_latency(connections.pace.latency)
    share = connections.join()
    request = request_of(Scattered(LARGE))(0, 2 * lead, None)
    await request.open()
    room = BlockRoom(connections, share, promised=0)
    direct = RangeBuffer(request, connections, room, 2 * lead)
    assert (share.busy, direct.is_busy) == (1, True)
    while await direct.readinto(memoryview(bytearray(lead))):
        left = direct.stop - direct.stream.position
        assert direct.is_busy == (left > 0), "none follows the one request of a stream"

    assert connections.promise(share, 2 * BLOCK_BYTES)
    room = BlockRoom(connections, share, promised=2 * BLOCK_BYTES)
    stop = 2 * BLOCK_BYTES + lead
    ahead = RangeBuffer(request_of(Scattered(LARGE))(0, stop, None), connections, room, stop)
    ahead.begin(lambda: None)
    assert share.busy == 1
    assert ahead.task is not None
    await ahead.task
    assert (share.busy, ahead.is_busy) == (0, False), "what is left takes less than a latency"
    for part in (direct, ahead):
        await part.aclose()
        await part.aclose()
    assert share.busy == 0
    connections.leave(share)


async def test_as_many_streams_as_connections_take_one_request_each() -> None:
    connections = Connections(BUDGET)
    backends = [Scattered(DATA, seed) for seed in range(16)]
    streams = [await opened(backend, connections) for backend in backends]
    assert set(await asyncio.gather(*map(read_up_to_8_mib, streams))) == {DATA[: 8 * MIB]}
    assert [len(backend.log) for backend in backends] == [1] * 16
    for stream in streams[1:]:
        await stream.aclose()
    assert await read_all(streams[0]) == DATA[8 * MIB :]
    assert len(backends[0].log) > 3, "the last one gets the others' connections"
    check_nothing_is_left(backends[0], connections)


async def read_up_to_8_mib(stream: ParallelStream) -> bytes:
    got = bytearray()
    while len(got) < 8 * MIB:
        buffer = memoryview(bytearray(8 * MIB - len(got)))
        got += buffer[: await stream.readinto(buffer)]
    return bytes(got)


class FirstAnswered(Scattered):
    """Answers only requests for the object's start until `answered` is set; `waiting` others
    wait.
    """

    waiting = 0

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """A body, after a while."""
        if start:
            self.waiting += 1
            await self.answered.wait()
        return await super().open(path, start, end, version)


async def test_ranges_of_streams_that_rest_count_too() -> None:
    """Each stream was the only active one for a while, and had all connections; then they waited
    for each other.
    """
    now = 0.0
    connections = Connections(1 << 30, KneeSearch(start=16, most=16), clock=lambda: now)
    backends = [FirstAnswered(DATA, seed) for seed in range(16)]
    streams = [await opened(backend, connections) for backend in backends]
    got = await asyncio.gather(*map(read_up_to_8_mib, streams))
    for index, stream in enumerate(streams):
        now += 1
        buffer = memoryview(bytearray(MIB))
        got[index] += buffer[: await stream.readinto(buffer)]
    await asyncio.sleep(0)
    assert 16 <= sum(backend.waiting for backend in backends) <= 32
    for backend in backends:
        backend.answered.set()
    for index, stream in enumerate(streams):
        assert got[index] + await read_all(stream) == DATA
    for backend in backends:
        check_nothing_is_left(backend, connections)


@drawn_examples(15)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 400), min_size=2, max_size=4))
def test_streams_that_come_and_go_cut_and_join_each_others_requests(
    seed: int, starts: list[int]
) -> None:
    """A stream has several connections while it is alone, else one: no byte comes twice or is
    missing.
    """

    async def run() -> None:
        connections = Connections(BUDGET, KneeSearch(start=4, most=8))
        backends = [Scattered(DATA, seed + number) for number in range(len(starts))]

        async def read(backend: Scattered, turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            assert await read_all(await opened(backend, connections), 3 * MIB) == DATA

        await asyncio.gather(*map(read, backends, starts))
        for backend in backends:
            given = sorted((asked.start, asked.start + asked.given) for asked in backend.log)
            assert all(first[1] == second[0] for first, second in pairwise(given))
            check_nothing_is_left(backend, connections)

    asyncio.run(run())


async def test_a_stream_without_a_budget_continues_alone() -> None:
    connections = Connections(0)
    stream = await opened(Scattered(DATA), connections)
    assert await read_all(stream) == DATA
    assert connections.room.held == 0


async def test_an_object_without_a_version_is_not_split() -> None:
    backend = Scattered(DATA)
    first = request_of(backend)(0, None, None)
    await first.open()
    first._extent.learn(replace(first.info, version=None))
    connections = Connections(BUDGET)
    stream = ParallelStream(request_of(backend), connections, connections.join(), first, None)
    assert await read_all(stream) == DATA
    assert len(backend.log) == 1


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    (root / "b").mkdir()
    (root / "b" / "large").write_bytes(DATA)
    (root / "b" / "record").write_bytes(encode_records([b"a", DATA, b"z"]))
    return root


@pytest.fixture
def simulated(root: Path) -> Iterator[ObjectStore]:
    with ObjectStore(root) as store:
        yield store


@pytest.fixture
async def storages(simulated: ObjectStore) -> AsyncIterator[Storages]:
    policy = RetryPolicy(attempts=8, backoff_base=0.01, stall_timeout=0.3, first_byte_timeout=2)
    async with Storages(simulated.options(), retry=policy, buffer_bytes=BUDGET) as storages:
        yield storages


@pytest.mark.parametrize(
    "faults",
    [
        NO_FAULTS,
        Faults(first_byte=0.005, jitter=0.02, rate=60e6),
        Faults(
            first_byte=0,
            reset=0.2,
            cut=0.1,
            unavailable=0.2,
            stall=0.1,
            slow=0.2,
            slow_first_byte=0.5,
        ),
        Faults(first_byte=0, truncate=0.2, wrong_content_range=0.2, ignore_range=0.1),
        Faults(first_byte=0, rate=200e6, crawl=0.4, crawl_rate=15e6, reset=0.1),
    ],
    ids=["fair", "paced", "broken", "lying", "crawling"],
)
async def test_over_http_in_any_network(
    simulated: ObjectStore, storages: Storages, faults: Faults
) -> None:
    simulated.faults = faults
    stream = await (await storages.at("s3://b/large")).stream("s3://b/large")
    assert isinstance(stream, ParallelStream)
    assert await read_all(stream, MIB) == DATA
    asked = [entry for entry in simulated.log if entry.method == "GET"]
    assert len(asked) > 4
    assert storages.connections.room.held == 0


async def test_an_object_that_is_replaced_by_a_shorter_one(
    simulated: ObjectStore, storages: Storages, root: Path
) -> None:
    path = root / "b" / "shrinks"
    path.write_bytes(DATA)
    stream = await (await storages.at("s3://b/shrinks")).stream("s3://b/shrinks")
    path.unlink()  # open files keep the old content
    path.write_bytes(DATA[:MIB])
    assert isinstance(stream, ParallelStream)
    got, error = await read_up_to_an_error(stream)
    assert isinstance(error, ObjectChangedError)
    assert DATA.startswith(got)
    assert fetching_tasks() == []


async def test_a_record_that_is_longer_than_any_range(
    simulated: ObjectStore, storages: Storages
) -> None:
    simulated.faults = Faults(first_byte=0.005, jitter=0.02, rate=100e6)
    reader = await ShardReader.open(await storages.at("s3://b/record"), "s3://b/record")
    assert [record async for record in reader] == [b"a", DATA, b"z"]
    await reader.aclose()
    assert len([entry for entry in simulated.log if entry.method == "GET"]) > 4


async def test_the_first_bytes_come_with_the_first_answer(simulated: ObjectStore) -> None:
    """No other request comes before them, neither a HEAD nor a range. (Hedges are off: a busy
    machine is late.)
    """
    async with Storages(
        simulated.options(), retry=RetryPolicy(hedge_share=0), buffer_bytes=BUDGET
    ) as storages:
        stream = await (await storages.at("s3://b/large")).stream("s3://b/large")
        for size in (100, 64 << 10):
            assert await stream.readinto(memoryview(bytearray(size))) > 0
        assert len([entry for entry in simulated.log if entry.kind != "list"]) == 1
        await stream.aclose()
