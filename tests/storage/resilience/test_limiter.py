"""Throttling: all requests to a bucket share one rate, and every request succeeds."""

import asyncio
import heapq
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.storage import Storages
from streamrec.storage.limiter import HOLD_CAP, Limiter, RateLimit
from streamrec.storage.traffic import Traffic
from tests.effort import drawn_examples
from tests.servers.objectstore import ObjectStore, anonymous_options, serve_objects
from tests.storage.contract import read_all
from tests.storage.faultproxy import Fault, FaultProxy, Request, status

DATA = os.urandom(20_000)


# The plan


def test_retry_after_delays_all_requests_up_to_a_limit() -> None:
    pace = Limiter()
    pace.record_request(0.0)
    pace.record_throttling(0.0, 0.0, retry_after=7.0)
    assert pace.delay(0.0) == 7.0
    pace.record_throttling(0.0, 0.0, retry_after=3600.0)
    assert pace.delay(0.0) == HOLD_CAP


def test_the_limit_is_forgotten_when_it_is_no_longer_true() -> None:
    pace, now = Limiter(), 0.0
    for _ in range(50):
        pace.record_request(now)
    pace.record_throttling(now, now)
    for _ in range(10_000):
        now += pace.delay(now)
        pace.record_request(now)
        pace.record_success(now)
        if pace.rate is None:
            break
    assert pace.rate is None
    assert 5 < now < 60


def test_a_rate_grows_fastest_far_from_what_was_too_much() -> None:
    limit = RateLimit()
    for step in range(300):
        limit.record_request(step / 100)
    limit.record_refusal(3.0, sent_at=2.99)
    growths = [limit.growth(rate) / rate for rate in (10.0, 40.0, 80.0, 95.0, 150.0)]
    assert growths[0] == growths[1] > growths[2] > growths[3] < growths[4]


class Simulation:
    """A store that allows a number of requests per second, and streams that send them, with a
    simulated clock. It refuses everything between two times.
    """

    def __init__(
        self,
        allowed: int,
        streams: int,
        latency: float,
        outage: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.allowed = allowed
        self.latency = latency
        self.outage = outage
        self.pace = Limiter()
        self.answers: list[tuple[float, bool]] = []  # when, and whether it was served
        self.tokens, self.counted = float(allowed), 0.0
        self.served, self.refused = [0] * streams, 0
        self.queue: list[int] = []
        self.order = itertools.count()
        self.events: list[tuple[float, int, Callable[..., None], tuple[float | int, ...]]] = []
        self.draw = random.Random(1)
        for stream in range(streams):
            self.at(0.0, self.ask, stream)

    def at(self, when: float, call: Callable[..., None], *args: float | int) -> None:
        heapq.heappush(self.events, (when, next(self.order), call, args))

    def run(self, seconds: float) -> None:
        while self.events[0][0] < seconds:
            now, _, call, args = heapq.heappop(self.events)
            call(now, *args)

    def per_second(self, *, served: bool) -> list[int]:
        """How many requests were served, or refused, in each second."""
        counts = Counter(int(when) for when, was_served in self.answers if was_served == served)
        return [counts[second] for second in range(int(self.answers[-1][0]) + 1)]

    def ask(self, now: float, stream: int) -> None:
        self.queue.append(stream)
        if len(self.queue) == 1:
            self.at(now, self.send)

    def send(self, now: float) -> None:
        delay = self.pace.delay(now)
        if delay < 1e-9:
            self.pace.record_request(now)
            self.tokens = min(self.allowed, self.tokens + (now - self.counted) * self.allowed)
            self.counted = now
            is_served = self.tokens >= 1 and not self.outage[0] < now < self.outage[1]
            self.tokens -= is_served
            self.answers.append((now, is_served))
            answer = self.serve if is_served else self.refuse
            seconds = self.latency if is_served else 0.001  # a refusal costs a store nothing
            self.at(now + seconds, answer, self.queue.pop(0), now)
        if self.queue:
            self.at(now + max(delay, self.pace.delay(now)), self.send)

    def serve(self, now: float, stream: int, sent: float) -> None:
        self.served[stream] += 1
        self.pace.record_success(sent)
        self.ask(now, stream)

    def refuse(self, now: float, stream: int, sent: float) -> None:
        self.refused += 1
        self.pace.record_throttling(now, sent)
        self.at(now + self.draw.random() * 0.25, self.ask, stream)


@drawn_examples(25)
@given(st.integers(10, 100), st.integers(1, 64), st.floats(0.01, 0.2))
def test_many_streams_share_what_a_store_gives(allowed: int, streams: int, latency: float) -> None:
    simulation = Simulation(allowed, streams, latency)
    simulation.run(seconds=30)
    served = sum(simulation.served)
    assert served >= 0.85 * min(allowed, streams / latency) * 30 - streams
    assert simulation.refused <= 0.3 * served + 3 * streams
    assert min(simulation.served) >= 0.4 * served / streams - 2


@pytest.mark.parametrize("seconds", [1.0, 3.0])
def test_the_old_rate_is_back_soon_after_everything_was_refused(seconds: float) -> None:
    """In the fourth second after it. tensorflow/io#1953."""
    simulation = Simulation(1_000_000, streams=16, latency=0.05, outage=(2.0, 2.0 + seconds))
    simulation.run(seconds=15)
    served = simulation.per_second(served=True)
    recovered = served[int(2 + seconds) :]
    assert recovered[2] > 0.7 * served[1]
    assert recovered[3] == served[1]
    assert simulation.per_second(served=False)[int(3 + seconds) :] == [0] * (12 - int(seconds))


def test_a_store_that_limits_to_half_after_an_outage_refuses_few() -> None:
    simulation = Simulation(160, streams=16, latency=0.05, outage=(2.0, 5.0))
    simulation.run(seconds=40)
    refused = simulation.per_second(served=False)
    assert sum(refused[5:15]) < 0.1 * 10 * 160
    assert sum(refused[20:]) < 0.035 * 20 * 160
    assert sum(simulation.per_second(served=True)[20:]) > 0.99 * 20 * 160


def test_a_store_that_limits_to_half_only_after_an_outage_refuses_few() -> None:
    simulation = Simulation(400, streams=16, latency=0.05, outage=(2.0, 5.0))
    simulation.run(seconds=5)
    simulation.allowed = 160
    simulation.run(seconds=40)
    refused = simulation.per_second(served=False)
    assert sum(refused[5:15]) < 0.1 * 10 * 160
    assert sum(refused[20:]) < 0.035 * 20 * 160


def record_outage(limit: RateLimit, now: float) -> None:
    """All requests of a second and a half are refused, after one in which 100 were sent."""
    for step in range(250):
        limit.record_request(now + step / 100)
        if step >= 100:
            limit.record_refusal(now + step / 100, sent_at=now + step / 100)


def seconds_limited(limit: RateLimit, now: float) -> float:
    """How long the rate stays limited while the store serves everything."""
    began = now
    while limit.rate is not None:
        now += 1 / limit.rate
        limit.record_success(sent_at=now)
    return now - began


def test_a_second_outage_soon_after_the_first_may_be_a_limit() -> None:
    """A store that refuses everything as soon as the rate is too high gets a wave each minute."""
    limit = RateLimit()
    record_outage(limit, 0.0)
    first = seconds_limited(limit, 2.5)
    record_outage(limit, 10.0)
    second = seconds_limited(limit, 12.5)
    record_outage(limit, 100.0)
    third = seconds_limited(limit, 102.5)
    assert first < 3 < 6 < second
    assert third < 3


# The driver


async def test_first_come_first_served() -> None:
    limiter, order = Limiter(), []
    limiter.record_request(time.monotonic())
    limiter.record_throttling(time.monotonic(), time.monotonic())
    limiter.limit.rate = 200.0

    async def one(index: int) -> None:
        await limiter.turn()
        order.append(index)

    began = time.monotonic()
    await asyncio.gather(*[one(index) for index in range(20)])
    assert order == list(range(20))
    assert time.monotonic() - began >= 18 / 200


async def test_a_request_cancelled_in_the_queue_lets_the_others_through() -> None:
    limiter = Limiter()
    limiter.record_throttling(time.monotonic(), time.monotonic(), retry_after=0.05)
    limiter.limit.rate = 1000.0
    waiting = [asyncio.ensure_future(limiter.turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waits = await asyncio.gather(*waiting[1:])
    assert all(wait >= 0.04 for wait in waits)


def test_each_bucket_has_its_own() -> None:
    traffic = Traffic()
    assert traffic.limiter("s3://a/x") is traffic.limiter("s3://a/y")
    assert traffic.limiter("s3://a/x") is not traffic.limiter("s3://b/x")


# Over real HTTP


class Allowance:
    """Refuses requests above a rate: the faults of a proxy before a real server."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.burst = self.tokens = burst
        self.at = time.monotonic()
        self.refused = self.served = 0

    def __call__(self, request: Request) -> Fault | None:
        now = time.monotonic()
        self.tokens = min(self.burst, self.tokens + (now - self.at) * self.rate)
        self.at = now
        if self.tokens < 1:
            self.refused += 1
            return status("503 Slow Down")
        self.tokens -= 1
        self.served += 1
        return None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with serve_objects(tmp_path, {f"shard-{index:02}": DATA for index in range(100)}) as store:
        yield store


@pytest.mark.parametrize("scheme", ["s3", "gs"])
async def test_many_streams_get_through_a_store_that_throttles(
    store: ObjectStore, scheme: str
) -> None:
    allowance = Allowance(rate=25, burst=5)
    async with (
        FaultProxy(store.url, allowance) as proxy,
        Storages(anonymous_options(scheme, proxy.url)) as storages,
    ):
        storage = await storages.at(f"{scheme}://bucket")

        async def one(index: int) -> None:
            stream = await storage.stream(f"{scheme}://bucket/shard-{index:02}")
            assert await read_all(stream) == DATA
            await stream.aclose()

        await asyncio.gather(*[one(index) for index in range(50)])
        counts = storages.statistics.snapshot().backends[scheme]
    assert (counts.bytes, counts.failures) == (50 * len(DATA), 0)
    assert (
        counts.requests == allowance.served + allowance.refused + counts.retries["broken"]
    )  # kept alive too long
    assert counts.throttled == counts.retries["throttled"] == allowance.refused
    assert allowance.served == 50
    assert allowance.refused <= 100  # the first round, and one answer now and then
    assert counts.waited_for_turn > 0
    assert counts.hedges == 0
