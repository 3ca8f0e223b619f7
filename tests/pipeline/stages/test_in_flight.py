"""The order in which the results of parallel calls are delivered, without any call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import FixedPosition, NumberedPositions
from streamrec.pipeline.sources.parallel_map.in_flight import ElementTask, InFlight

COUNT = 12


class BadElementError(Exception):
    """The call for one element failed."""


@given(data=st.data(), ordered=st.booleans(), bad=st.sets(st.integers(0, COUNT - 1)))
def test_each_result_and_each_failure_is_delivered_once(
    data: st.DataObject, ordered: bool, bad: set[int]
) -> None:
    """Tasks begin in order, and get their results in any order and in any pieces."""
    in_flight = InFlight(ordered, start={"source": {"next": 0}})
    in_flight.feed(Chunk(list(range(7)), NumberedPositions(0), 7))
    in_flight.feed(Chunk(list(range(7, COUNT)), NumberedPositions(7), COUNT - 7))
    in_flight.end(None)
    running: list[ElementTask] = []
    delivered: list[int] = []
    while not in_flight.idle:
        if in_flight.pending and (not running or data.draw(st.booleans(), "start")):
            running.append(in_flight.start(data.draw(st.integers(1, 4), "size")))
        else:
            task = data.draw(st.sampled_from(running), "task")
            count = data.draw(st.integers(1, task.last - task.first), "results")
            elements = list(task.elements)[:count]
            errors = [
                (index, BadElementError(element))
                for index, element in enumerate(elements)
                if element in bad
            ]
            in_flight.add_results(task, elements, count, errors)
            running = [task for task in running if not task.ended]
        while (chunk := in_flight.deliver()) is not None:
            found = [chunk.error.args[0]] if chunk.error is not None else list(chunk.elements)
            assert bad.isdisjoint(found) != (chunk.error is not None)
            delivered += found
            assert_position_tells(chunk, delivered)
    assert sorted(delivered) == list(range(COUNT))
    assert not ordered or delivered == sorted(delivered)
    assert (in_flight.input_bytes, in_flight.result_bytes) == (0, 0)


def assert_position_tells(chunk: Chunk, delivered: list[int]) -> None:
    """The position after a chunk says which elements were delivered, and no others."""
    state = chunk.positions.at(len(chunk.elements))["source"]
    low = state["inner"].get("source", {}).get("next", 0) + state["inner"].get("skip", 0)
    beyond = {low + number for first, last in state["done"] for number in range(first, last)}
    assert {*range(low), *beyond} == set(delivered)


def test_the_error_of_the_input_comes_after_all_results_and_once() -> None:
    in_flight = InFlight(ordered=True)
    in_flight.feed(Chunk(["a"], FixedPosition(None), 1))
    in_flight.end(OSError("the input is gone"))
    task = in_flight.start(1)
    assert in_flight.deliver() is None
    in_flight.add_results(task, ["A"], 1)
    chunk = in_flight.deliver()
    assert chunk is not None
    assert chunk.elements == ["A"]
    with pytest.raises(OSError, match="the input is gone"):
        in_flight.deliver()
    assert in_flight.deliver() is None
