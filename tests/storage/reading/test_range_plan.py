"""Parallel ranges, the pure part: which ranges, how many at a time, and how streams share
connections.
"""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.storage.backend import BLOCK_BYTES
from streamrec.storage.connection_speed import ConnectionSpeed
from streamrec.storage.connections import (
    MAX_CONNECTIONS,
    MAX_OPEN,
    PROOF_ALONE,
    PROOF_BESIDE,
    START,
    Connections,
    StreamShare,
)
from streamrec.storage.knee_search import KneeSearch
from streamrec.storage.ledger import AllRuns, Ledger
from streamrec.storage.range_room import RangeRoom
from streamrec.storage.ranges import (
    MAX_RANGE,
    MIN_RANGE,
    MIN_SPLIT,
    RangeLimits,
    RangePlan,
    range_bytes,
)

MIB = 1 << 20


def test_small_objects_are_not_cut() -> None:
    assert RangePlan(0, 2 * MIN_RANGE - 1).cut(0, RangeLimits(16, 8 * MIB)) is None
    assert RangePlan(0, 100 * MIB).cut(0, RangeLimits(1, 8 * MIB)) is None
    assert RangePlan(7, 7).offer(RangeLimits(4, 8 * MIB), 0) is None


@given(st.floats(1e3, 1e10), st.floats(1e-5, 30), st.integers(1, 64), st.integers(0, 10**9))
def test_ranges_fit_the_budget(rate: float, latency: float, connections: int, budget: int) -> None:
    size = range_bytes(ConnectionSpeed(rate, latency), connections, budget)
    assert MIN_RANGE <= size <= MAX_RANGE
    assert size == MIN_RANGE or size * connections <= budget


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_climb_rests_longer_and_longer() -> None:
    search, tried = KneeSearch(START, MAX_CONNECTIONS), []
    for index in range(300):
        search.observe(1e9)
        if search.target > START:
            tried.append(index)
    waits = [second - first for first, second in pairwise(tried)]
    assert waits == sorted(waits)
    assert waits[-1] > 60


def take_bytes(share: StreamShare, nbytes: int, now: float) -> None:
    share.taken += nbytes
    share.waiting, share.last = False, now


def shares_that_read(connections: Connections, count: int, taken: int) -> list[StreamShare]:
    shares = [connections.join() for _ in range(count)]
    for share in shares:
        take_bytes(share, taken, connections.clock())
    return shares


def test_a_small_budget_means_fewer_connections_and_not_smaller_ranges() -> None:
    connections = Connections(22 * MIB, clock=Clock())
    (share,) = shares_that_read(connections, 1, PROOF_ALONE)
    assert connections.terms(share) == RangeLimits(8, MIN_RANGE, ConnectionSpeed().lead)


def test_a_stream_that_ends_or_rests_leaves_its_share_to_the_others() -> None:
    clock = Clock()
    connections = Connections(clock=clock)
    first, second, third = shares_that_read(connections, 3, PROOF_BESIDE)
    assert connections.terms(first).connections == START // 3
    connections.leave(third)
    connections.leave(third)
    assert connections.terms(first).connections == START // 2
    clock.now += 1
    second.waiting = True
    assert connections.terms(second).connections == START
    first.waiting = True
    clock.now += 1
    assert connections.terms(second).connections == START // 2


def test_a_stream_proves_first_that_it_wants_many_bytes() -> None:
    connections = Connections(clock=Clock())
    (share,) = shares_that_read(connections, 1, PROOF_ALONE - 1)
    assert connections.terms(share).connections == 1
    take_bytes(share, 1, connections.clock())
    assert connections.terms(share).connections == START
    other = connections.join()
    assert connections.terms(share).connections == 1
    take_bytes(share, PROOF_BESIDE, connections.clock())
    assert connections.terms(share).connections == START // 2
    assert connections.terms(other).connections == 1


Steps = list[tuple[int, int, bool]]


@given(
    st.integers(0, 100 * MIB),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30 * MIB), st.booleans()), max_size=60),
)
def test_the_room_is_never_exceeded(limit: int, steps: Steps) -> None:
    room = RangeRoom(limit)
    streams = [room.open("stream") for _ in range(5)]
    for number, nbytes, urgent in steps:
        stream = streams[number]
        if room.try_promise(stream, nbytes, streams=5, urgent=urgent):
            assert (stream.promised + 1) // 2 <= limit // 5 + 1
        wanted = min(nbytes, stream.promised)
        if not room.try_reserve(stream, wanted, streams=5, urgent=urgent) and stream.held:
            stream.release((stream.held + 1) // 2)
        assert sum(stream.held for stream in streams) == room.held <= limit
        assert sum(stream.promised for stream in streams) == room.promised
        assert all(stream.held <= limit // 5 for stream in streams)
    for stream in streams:
        stream.withdraw(stream.promised)
        stream.release(stream.held)
    assert (room.held, room.promised) == (0, 0)
    assert room.try_reserve(room.open("stream"), limit, streams=1, urgent=True)


def test_room_asks_the_run_whether_it_may_hold_more() -> None:
    room = RangeRoom(100)
    Ledger(10, runs=AllRuns()).adopt(room)
    stream = room.open("stream")
    assert not room.try_reserve(stream, 11, streams=1, urgent=True)
    assert room.try_reserve(stream, 10, streams=1, urgent=True)


def test_some_room_is_left_to_the_rests_of_slow_ranges() -> None:
    room = RangeRoom(80 * MIB)
    stream = room.open("stream")
    assert room.try_reserve(stream, 70 * MIB, streams=1, urgent=False)
    assert not room.try_reserve(stream, 1, streams=1, urgent=False)
    assert room.try_reserve(stream, 10 * MIB, streams=1, urgent=True)
    assert not room.try_reserve(stream, 1, streams=1, urgent=True)


def test_a_stream_that_leaves_frees_its_room() -> None:
    connections = Connections(10 * BLOCK_BYTES, clock=Clock())
    share = connections.join()
    assert connections.promise(share, 4 * BLOCK_BYTES)
    assert connections.reserve_block(share)
    connections.leave(share)
    connections.leave(share)
    assert (connections.room.held, connections.room.promised) == (0, 0)


def run_a_wire(connections: Connections, clock: Clock, wire: float, seconds: float) -> None:
    """One large object on a wire that takes so much, each connection 60 MB/s of it."""
    (share,) = shares_that_read(connections, 1, PROOF_ALONE)
    connections.ahead += 1
    for _ in range(int(seconds / 0.01)):
        clock.now += 0.01
        rate = min(connections.terms(share).connections * 60e6, wire)
        take_bytes(share, 0, connections.record_bytes(int(rate * 0.01)))


@pytest.mark.parametrize(
    ("wire", "expected"), [(10e9, MAX_CONNECTIONS), (1.5e9, 25), (1e9, START), (125e6, START)]
)
def test_more_connections_only_where_they_bring_more(wire: float, expected: int) -> None:
    clock = Clock()
    connections = Connections(1 << 30, clock=clock)
    run_a_wire(connections, clock, wire, seconds=6)
    assert expected <= connections.search.target <= expected * 1.25


@pytest.mark.parametrize("most", [4, 100])
def test_the_user_says_how_many_connections_there_are_at_most(most: int) -> None:
    clock = Clock()
    connections = Connections(4 << 30, KneeSearch(START, most), clock=clock)
    run_a_wire(connections, clock, 20e9, seconds=8)
    assert connections.search.target == most


def test_a_pause_of_the_consumer_is_not_measured() -> None:
    clock = Clock()
    connections = Connections(clock=clock)
    connections.ahead += 1
    for _ in range(100):
        clock.now += 60
        connections.record_bytes(MIB)
    assert connections.search.target == START


def test_small_objects_are_opened_further_ahead() -> None:
    connections = Connections(clock=Clock())
    for _ in range(40):
        connections.record_latency(0.04)
        connections.record_rate(60 * MIB, 1.0)
    connections.record_latency(5.0)  # one that was slow tells little
    assert connections.pace == ConnectionSpeed(60 * MIB, 0.04)
    wanted = [connections.streams_for(size) for size in (1, 100_000, 10 * MIB, 100 * MIB, 10**10)]
    assert wanted[:2] == [MAX_OPEN, MAX_OPEN]
    assert wanted[2] == math.ceil(START * (1 + 0.04 * 6))
    assert wanted == sorted(wanted, reverse=True)
    assert wanted[-1] == START + 1


@given(
    stop=st.integers(0, 200 * MIB),
    reached=st.integers(0, 200 * MIB),
    connections=st.integers(1, 20),
    size=st.integers(MIN_RANGE, MAX_RANGE),
    under_way=st.integers(0, 20),
)
def test_ranges_cover_all_that_is_left_once(
    stop: int, reached: int, connections: int, size: int, under_way: int
) -> None:
    reached = min(reached, stop)
    terms = RangeLimits(connections, size)
    plan = RangePlan(0, stop)
    cut = plan.cut(reached, terms)
    if cut is None:
        assert connections < 2 or stop - reached < MIN_SPLIT
        assert plan.offer(terms, 0) is None
        return
    assert plan.offer(terms, connections) is None
    at = cut
    while (offered := plan.offer(terms, min(under_way, connections - 1))) is not None:
        assert offered.start == at
        assert 0 < offered.stop - at <= size + MIN_RANGE // 2
        at = plan.next = offered.stop
    assert at == stop
    assert reached < cut <= stop


def test_a_single_connection_requests_all_that_is_left() -> None:
    plan = RangePlan(0, 100 * MIB)
    plan.cut(0, RangeLimits(4, 8 * MIB))
    assert plan.offer(RangeLimits(1, 8 * MIB), 0) == (plan.next, 100 * MIB)
    assert plan.offer(RangeLimits(1, 8 * MIB), 1) is None
    two = plan.offer(RangeLimits(2, 8 * MIB), 1)
    assert two is not None
    assert two.stop < 100 * MIB


def test_nothing_is_planned_after_a_failure() -> None:
    terms = RangeLimits(4, MIN_RANGE)
    plan = RangePlan(0, 100 * MIB)
    plan.cut(0, terms)
    assert plan.offer(terms, 0)
    plan.end()
    assert plan.offer(terms, 0) is None
    alone = RangePlan(0, 100 * MIB)
    alone.end()
    assert alone.cut(0, terms) is None
