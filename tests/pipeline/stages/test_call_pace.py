"""How many calls of a function run at once, and of which elements, decided without I/O."""

from hypothesis import given
from hypothesis import strategies as st

from streamrec import AUTOTUNE
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import NumberedPositions
from streamrec.pipeline.sources.parallel_map.in_flight import ElementTask, InFlight
from streamrec.pipeline.sources.parallel_map.pace import CallPace, CallPlan, cores

MAX_BYTES = 10_000


def pace_of(calls: int, *, awaits: bool = True) -> CallPace:
    return CallPace(calls, awaits=awaits, max_bytes=MAX_BYTES, now=0.0)


def feed(in_flight: InFlight, count: int, nbytes: int = 1) -> None:
    in_flight.feed(Chunk([b""] * count, NumberedPositions(0), nbytes))


def finish(in_flight: InFlight, task: ElementTask, nbytes: int = 1) -> None:
    in_flight.add_results(task, [b""] * len(task.elements), nbytes, [])


def start_all(plan: CallPlan) -> list[ElementTask]:
    started = []
    while (task := plan.next_task()) is not None:
        started.append(task)
    return started


def test_as_many_calls_start_as_the_user_wants() -> None:
    in_flight = InFlight(ordered=True)
    plan = CallPlan(in_flight, pace_of(3), MAX_BYTES)
    feed(in_flight, 10)
    assert len(start_all(plan)) == 3
    assert plan.is_busy


def test_input_is_taken_until_there_is_enough_for_all_calls() -> None:
    in_flight = InFlight(ordered=True)
    plan = CallPlan(in_flight, pace_of(3), MAX_BYTES)
    feed(in_flight, 2)
    assert not plan.is_full
    feed(in_flight, 1)
    assert plan.is_full


def test_large_input_waits_but_one_chunk_always_comes() -> None:
    in_flight = InFlight(ordered=True)
    plan = CallPlan(in_flight, pace_of(100), MAX_BYTES)
    assert not plan.is_full
    feed(in_flight, 1, MAX_BYTES)
    assert plan.is_full


def test_large_results_stop_further_calls_but_one() -> None:
    in_flight = InFlight(ordered=True)
    pace = pace_of(8)
    plan = CallPlan(in_flight, pace, MAX_BYTES)
    feed(in_flight, 20)
    pace.record(1, seconds=0.1, nbytes=MAX_BYTES // 2, now=0.1)
    assert len(start_all(plan)) == 2
    pace.record(1, seconds=0.1, nbytes=100 * MAX_BYTES, now=0.2)
    assert start_all(plan) == []


def test_calls_that_wait_for_a_slow_one_end_at_four_times_their_number() -> None:
    """Results come in order, so those after the first call wait for it."""
    in_flight = InFlight(ordered=True)
    plan = CallPlan(in_flight, pace_of(2), MAX_BYTES)
    feed(in_flight, 100)
    first, *others = start_all(plan)
    for _ in range(20):
        for task in others:
            finish(in_flight, task)
        others = start_all(plan)
    assert in_flight.undelivered == 8
    finish(in_flight, first)
    while in_flight.deliver() is not None:
        pass
    assert len(start_all(plan)) == 2


def test_no_task_starts_after_the_end() -> None:
    in_flight = InFlight(ordered=True)
    plan = CallPlan(in_flight, pace_of(2), MAX_BYTES)
    feed(in_flight, 10)
    plan.stop()
    assert plan.next_task() is None


def test_elements_are_divided_among_all_calls() -> None:
    in_flight = InFlight(ordered=True)
    pace = pace_of(4, awaits=False)
    plan = CallPlan(in_flight, pace, MAX_BYTES)
    for _ in range(9):
        pace.record(pace.size, seconds=1e-6 * pace.size, nbytes=pace.size, now=0.0)
    assert pace.size > 100
    feed(in_flight, 400)
    assert [len(task.elements) for task in start_all(plan)][:1] == [max(100, pace.size // 8)]


def test_a_function_that_returns_awaitables_is_called_for_one_element_at_a_time() -> None:
    pace = pace_of(AUTOTUNE, awaits=False)
    for _ in range(9):
        pace.record(pace.size, seconds=1e-6 * pace.size, nbytes=pace.size, now=0.0)
    assert pace.size > 1
    assert pace.target <= cores()
    pace.become_async()
    assert (pace.size, pace.target) == (1, 8)
    pace.become_async()
    assert pace.target == 8


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "record"]), st.integers(0, 5))))
def test_the_consumer_never_waits_longer_than_time_passes(steps: list[tuple[str, int]]) -> None:
    told: list[tuple[float, float]] = []
    pace = pace_of(1)
    pace._count.due = lambda seconds, calls: True  # type: ignore[method-assign]
    pace._count.end_window = (  # type: ignore[method-assign]
        lambda seconds, calls, waited: told.append((seconds, waited))
    )
    now = 0.0
    for step, passed in steps:
        now += passed
        if step == "begin":
            pace.begin_wait(now)
        elif step == "end":
            pace.end_wait(now)
        else:
            pace.record(1, seconds=1.0, nbytes=1, now=now)
    assert all(0 <= waited <= seconds for seconds, waited in told)
    assert sum(seconds for seconds, _ in told) <= now
