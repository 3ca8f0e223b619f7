"""Hedging: learnt limits, the budget, and right bytes whichever request wins."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import TFRecordDataset, encode_records
from streamrec.errors import PermissionDeniedError, StorageError
from streamrec.storage import RetryPolicy, Storages
from streamrec.storage.backend import Body
from streamrec.storage.faults import Cause, TransientError
from streamrec.storage.hedging import EARNS, SAVED, Hedging
from streamrec.storage.stream import ResumingStream
from streamrec.storage.traffic import Traffic
from tests.effort import thorough
from tests.servers.faults import NO_FAULTS, Faults, decide
from tests.servers.objectstore import ObjectStore, serve_objects
from tests.storage.contract import open_storage, read_all
from tests.storage.reading.scattered import Scattered

RECORDS = [os.urandom(1000) for _ in range(3000)]
DATA = encode_records(RECORDS)
PATIENT = RetryPolicy(
    first_byte_timeout=20, stall_timeout=20, backoff_base=0.01
)  # only a hedge is fast


@pytest.fixture(params=["s3", *thorough("gs", "http")])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with serve_objects(tmp_path, {f"shard-{index:02}": DATA for index in range(32)}) as store:
        yield store


def url(store: ObjectStore, scheme: str, index: int) -> str:
    return store.url_of(scheme, f"bucket/shard-{index:02}")


def first_is_slow(name: str, slow: int = 1) -> Faults:
    """A network in which the first requests for an object are slow, and the next one is not."""
    for seed in range(1000):
        faults = Faults(slow=0.5, slow_first_byte=10.0, first_byte=0.0, jitter=0.0, seed=seed)
        if [decide(faults, "read", name, ordinal).slow for ordinal in range(slow + 1)] == [
            True
        ] * slow + [False]:
            return faults
    raise AssertionError("no seed does it")


# The plan


def test_the_limit_is_learnt_and_follows_the_network() -> None:
    hedging = Hedging(RetryPolicy())
    assert hedging.response.seconds() == 1.5
    for _ in range(50):
        hedging.response.observe(0.060)
    assert 0.1 < hedging.response.seconds() < 0.13
    for _ in range(10):
        hedging.response.observe(3.0)  # a few slow ones change nothing
    assert hedging.response.seconds() < 0.13
    for _ in range(500):
        hedging.response.observe(1.0)  # a slow network does
    assert 1.5 < hedging.response.seconds() < 2.1


def test_slow_bodies_are_not_stalled_ones() -> None:
    hedging = Hedging(RetryPolicy())
    assert hedging.body.seconds() == 2.0
    for _ in range(64):
        hedging.block(0.9, 1 << 10)
    assert hedging.body.seconds() >= 3.6


@given(
    st.floats(0, 1),
    st.lists(st.sampled_from(["request", "hedge"]) | st.integers(0, 64 << 20), max_size=200),
)
def test_extra_traffic_is_capped(share: float, events: list[str | int]) -> None:
    hedging = Hedging(RetryPolicy(hedge_share=share))
    hedges, earned = 0, 1.0 if share else 0.0
    for event in events:
        if event == "request":
            hedging.budget.earn()
            earned += share
        elif isinstance(event, int):
            hedging.block(0.01, event)
            earned += share * event / EARNS
        else:
            hedges += hedging.budget.spend()
        assert hedges <= earned + 1e-6
    burst = 0
    while hedging.budget.spend():
        burst += 1
    assert burst <= SAVED


# A run's first second


def asked(hedging: Hedging, requests: int, answered: int, seconds: float) -> None:
    """Simulates requests that are sent at once, some of which are answered."""
    for _ in range(requests):
        hedging.budget.earn()
        hedging.response.waiting += 1
    for _ in range(answered):
        hedging.response.waiting -= 1
        hedging.response.observe(seconds)


@pytest.mark.parametrize(
    ("requests", "answered", "limit"),
    [
        (16, 15, RetryPolicy().first_byte_floor),  # twice 40 ms is less
        (16, 12, RetryPolicy().first_byte_floor),
        (16, 11, 1.5),  # more than a quarter of them wait: that is the store
        (16, 0, 1.5),
        (4, 3, 0.16),
        (3, 2, 1.5),
        (1, 0, 1.5),
    ],
)
def test_siblings_that_were_answered_say_what_late_is(
    requests: int, answered: int, limit: float
) -> None:
    hedging = Hedging(RetryPolicy())
    asked(hedging, requests, answered, 0.040)
    assert hedging.response.seconds() == pytest.approx(limit, rel=0.01)
    assert hedging.response.is_measured() is (limit < 1.5)


def test_a_few_blocks_of_siblings_say_what_a_stall_is() -> None:
    hedging = Hedging(RetryPolicy())
    before = hedging.body.blocks
    for _ in range(7):
        hedging.block(0.02, 1 << 20)
    assert (hedging.body.seconds(), hedging.body.flows_since(before)) == (2.0, False)
    hedging.block(0.02, 1 << 20)
    assert (hedging.body.seconds(), hedging.body.flows_since(before)) == (
        RetryPolicy().stall_floor,
        True,
    )
    assert not hedging.body.flows_since(hedging.body.blocks), (
        "all bodies stand still: that is the network"
    )


def test_the_floors_and_the_allowance_are_the_policys() -> None:
    assert not Hedging(RetryPolicy(hedge_share=0.0)).budget.spend(others_on_time=True), (
        "without a share there is no allowance"
    )
    hedging = Hedging(RetryPolicy(hedge_allowance=1, first_byte_floor=0.3, stall_floor=0.05))
    asked(hedging, 16, 15, 0.010)
    for _ in range(8):
        hedging.block(0.001, 1 << 10)
    assert (hedging.response.seconds(), hedging.body.seconds()) == (0.3, 0.05)
    while hedging.budget.spend():
        pass
    assert [hedging.budget.spend(others_on_time=True) for _ in range(2)] == [True, False]


def test_the_allowance_is_for_requests_later_than_their_siblings() -> None:
    hedging = Hedging(RetryPolicy())
    assert hedging.budget.spend(), "the first slow request of a run"
    assert not hedging.budget.spend(), "the whole store may be slow"
    assert [hedging.budget.spend(others_on_time=True) for _ in range(5)] == [
        True,
        True,
        True,
        True,
        False,
    ]


def test_a_store_that_throttles_gets_second_requests_only_for_stalled_bodies_and_in_their_turn() -> (  # noqa: E501
    None
):
    traffic = Traffic(hedging=Hedging(RetryPolicy()))
    limiter = traffic.limiter("s3://bucket/key")
    limiter.record_throttling(time.monotonic(), time.monotonic())
    limiter._next = 0.0
    assert not traffic.hedge(limiter, traffic.tally)
    assert not traffic.hedge(limiter, traffic.tally, others_on_time=True)
    assert traffic.hedge(limiter, traffic.tally, stalled=True)
    limiter.record_request(time.monotonic())
    assert not traffic.hedge(limiter, traffic.tally, others_on_time=True, stalled=True), (
        "it is another's turn"
    )
    limiter._next = 0.0
    assert not traffic.hedge(limiter, traffic.tally, stalled=True), "the share is spent"
    assert traffic.hedge(limiter, traffic.tally, others_on_time=True, stalled=True)


# Over real HTTP


@pytest.mark.parametrize("slow", [1, 2])
async def test_a_slow_answer_is_overtaken(store: ObjectStore, scheme: str, slow: int) -> None:
    async with Storages(store.options(scheme), retry=replace(PATIENT, hedge_share=1.0)) as storages:
        storage = await storages.at(url(store, scheme, 0))
        for index in range(10):
            await read_all(await storage.stream(url(store, scheme, index)))
        store.faults = first_is_slow("bucket/shard-10", slow)
        began = time.monotonic()
        assert await read_all(await storage.stream(url(store, scheme, 10))) == DATA
        assert time.monotonic() - began < 10
    counts = storages.statistics.snapshot().backends[scheme]
    assert counts.hedges >= slow, "more of them where the machine itself was slow"
    assert counts.hedges >= counts.hedges_won >= 1
    assert counts.requests == 11 + counts.hedges


async def test_a_stalled_body_is_overtaken_at_the_byte_reached(
    store: ObjectStore, scheme: str
) -> None:
    store.faults = replace(NO_FAULTS, script=("stall",), at=0.5)
    path = url(store, scheme, 0)
    async with Storages(store.options(scheme), retry=PATIENT) as storages:
        stream = await (await storages.at(path)).stream(path)
        assert await read_all(stream) == DATA
    counts = stream.tally.counts()
    assert (counts.stalls, counts.hedges, counts.hedges_won, counts.requests) == (1, 1, 1, 2)
    assert not any(counts.retries.values())
    first, second = (entry for entry in store.log if entry.kind == "read")
    assert first.fault == "stall"
    assert second.start <= first.sent
    assert counts.bytes == len(DATA)


async def test_the_slower_of_two_requests_leaves_no_task(store: ObjectStore) -> None:
    before = asyncio.all_tasks()
    path = url(store, "s3", 0)
    async with open_storage(path, store.options("s3"), PATIENT) as storage:
        for index in range(10):
            await read_all(await storage.stream(url(store, "s3", index)))
        store.faults = replace(NO_FAULTS, script=("stall",), at=0.9)
        stream = await storage.stream(path)
        buffer = memoryview(bytearray(1 << 20))
        while stream.tally.counts().hedges_won == 0 and await stream.readinto(buffer):
            pass
        assert await asyncio.to_thread(store.wait_closed, 30), "the stalled connection was closed"
        await stream.aclose()
        assert asyncio.all_tasks() == before


async def test_a_network_that_is_slow_everywhere_is_not_doubled(store: ObjectStore) -> None:
    store.faults = Faults(first_byte=0.15, jitter=0.0)
    async with Storages(store.options("s3"), retry=PATIENT) as storages:
        storage = await storages.at(url(store, "s3", 0))
        for index in range(16):
            assert len(await storage.read_range(url(store, "s3", index), 0, 1000)) == 1000
    counts = storages.statistics.snapshot().backends["s3"]
    assert counts.hedges <= 1 + 0.1 * 16
    assert counts.requests <= 16 + counts.hedges
    seen = store.counters
    assert seen.requests + seen.in_flight == counts.requests, (
        "the store counts an answer when it has been sent"
    )


@pytest.mark.parametrize("seed", [1, *thorough(2, 5)])
def test_a_short_run_of_stalls_resets_and_refusals(store: ObjectStore, seed: int) -> None:
    """It ends long before a time limit, though it has earned next to no second requests."""
    store.faults = Faults(
        seed=seed, first_byte=0.01, jitter=0.01, rate=3e6, stall=0.15, reset=0.2, unavailable=0.1
    )
    names = [f"shard-{index:02}" for index in range(16)]
    first = [decide(store.faults, "read", f"bucket/{name}", 0).fault for name in names]
    assert first.count("stall") >= 2
    urls = [url(store, "s3", index) for index in range(16)]
    dataset = TFRecordDataset(urls, storage_options=store.options("s3"), num_parallel_reads=16)
    with dataset.batch(256).iterate() as batches:
        found = [record for frames in batches for record in frames]
        counts = batches.stats().storage.backends["s3"]
    assert sorted(found) == sorted(RECORDS * 16)
    assert counts.retries["timed_out"] == 0
    assert counts.hedges_won >= first.count("stall")
    assert counts.requests <= 1.5 * (16 + sum(counts.retries.values())) + 4


# Requests for the same bytes that run against each other


SHORT = bytes(1000)
FAULT = TransientError(Cause.SERVER, "a 500")

Step = Callable[[Body], Awaitable[Body]]


@dataclass
class Scripted(Scattered):
    """Answers each request as its step says; the last step is for all further ones."""

    script: Sequence[Step] = ()

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """The answer of the step."""
        step = self.script[min(len(self.log), len(self.script) - 1)]
        body = await super().open(path, start, end, version)
        try:
            return await step(body)
        except BaseException:
            await body.aclose()
            raise


async def give_body(body: Body) -> Body:
    return body


async def fail_request(body: Body) -> Body:
    raise FAULT


async def never_answer(body: Body) -> Body:
    await asyncio.get_running_loop().create_future()
    return body


def stream_with_second_request(*script: Step) -> tuple[Scripted, ResumingStream]:
    """A stream whose second request comes soon, and what answers it."""
    backend = Scripted(SHORT, script=script)
    traffic = Traffic(
        hedging=Hedging(RetryPolicy(hedge_share=1.0, first_byte_timeout=1.0, stall_timeout=200.0))
    )
    return backend, ResumingStream(
        backend, RetryPolicy(attempts=1), "memory://x", 0, None, None, traffic
    )


async def test_an_answer_that_was_taken_is_closed_if_its_opening_is_cancelled() -> None:
    """The loser's cancellation takes time: a caller cancelled meanwhile used to leave the winner's
    connection open.
    """
    rivalled = asyncio.Event()
    settling = asyncio.Event()
    cleaned = asyncio.Event()

    async def first(body: Body) -> Body:
        await rivalled.wait()
        return body

    async def second(body: Body) -> Body:
        rivalled.set()
        try:
            return await never_answer(body)
        finally:
            settling.set()
            await cleaned.wait()

    backend, stream = stream_with_second_request(first, second)
    opening = asyncio.create_task(stream.open())
    await settling.wait()
    opening.cancel()
    await asyncio.sleep(0)
    cleaned.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert [asked.closed for asked in backend.log] == [True, True]


def first_after_second(first: Step, second: Step) -> tuple[Step, Step]:
    """The first request goes on when the second one has come, and the second one then."""
    arrived, gone_on = asyncio.Event(), asyncio.Event()

    async def begin(body: Body) -> Body:
        await arrived.wait()
        gone_on.set()
        return await first(body)

    async def rival(body: Body) -> Body:
        arrived.set()
        await gone_on.wait()
        return await second(body)

    return begin, rival


async def forbid_reading(body: Body) -> Body:
    raise PermissionDeniedError("no", "memory://x")


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [(never_answer, forbid_reading, "no"), (fail_request, fail_request, "a 500")],
)
async def test_a_final_error_or_two_failures_end_the_wait(
    first: Step, second: Step, kind: str
) -> None:
    """The first request alone would be given up later."""
    before = asyncio.all_tasks()
    backend, stream = stream_with_second_request(*first_after_second(first, second))
    async with asyncio.timeout(15):
        with pytest.raises(StorageError, match=kind):
            await stream.open()
    assert asyncio.all_tasks() == before
    assert [asked.closed for asked in backend.log] == [True, True]


async def test_a_second_request_is_waited_for_when_the_first_failed() -> None:
    backend, stream = stream_with_second_request(*first_after_second(fail_request, give_body))
    await stream.open()
    buffer = memoryview(bytearray(len(SHORT)))
    assert (await stream.readinto(buffer), bytes(buffer)) == (len(SHORT), SHORT)
    await stream.aclose()
    counts = stream.tally.counts()
    assert (counts.hedges, counts.hedges_won, sum(counts.retries.values())) == (1, 1, 0)
    assert all(asked.closed for asked in backend.log)


class StandingStill:
    """A body that never gives anything."""

    has_arrived = False

    def __init__(self, body: Body) -> None:
        self.info = body.info
        self.splits = body.splits
        self.aclose = body.aclose

    async def readinto(self, buffer: memoryview) -> int:
        await asyncio.get_running_loop().create_future()
        return 0


async def stop_giving(body: Body) -> Body:
    return StandingStill(body)


async def test_a_stalled_body_is_overtaken_though_second_requests_were_refused() -> None:
    """A refused hedge used to block further ones, so the body stalled until its time limit."""
    backend = Scripted(SHORT, script=(stop_giving, fail_request, fail_request, give_body))
    backend.remote = backend.may_stall = True  # type: ignore[misc]
    hedging = Hedging(
        RetryPolicy(hedge_share=1.0, first_byte_timeout=200.0, stall_timeout=0.1, stall_floor=0.01)
    )
    for _ in range(10):
        hedging.budget.earn()
    traffic = Traffic(hedging=hedging)
    stream = ResumingStream(
        backend, RetryPolicy(stall_timeout=20.0), "memory://x", 0, None, None, traffic
    )
    await stream.open()
    buffer = memoryview(bytearray(len(SHORT)))
    async with asyncio.timeout(15):
        assert await stream.readinto(buffer) == len(SHORT)
    counts = stream.tally.counts()
    assert (counts.stalls, counts.hedges_won) == (1, 1)
    assert counts.hedges >= 3
    await stream.aclose()
    assert all(asked.closed for asked in backend.log)
