"""Items that a call shares with idle threads: each is worked on once, and errors are those of a
loop.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from streamrec import Dataset
from streamrec.pipeline.engine.shared_items import SharedItems, for_each_item
from streamrec.pipeline.engine.stage import Halt

WAIT = 30
"""Seconds until a thread that nothing wakes fails its test."""


@pytest.mark.parametrize("helpers", [0, 1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 500])
def test_each_item_is_worked_on_once(count: int, helpers: int) -> None:
    done: list[int] = []
    items = SharedItems(count, done.append)
    with ThreadPoolExecutor(helpers + 1) as pool:
        helping = [pool.submit(items.help, Halt()) for _ in range(helpers)]
        items.finish()
        # All are done when the call ends, also those that helpers took.
        assert sorted(done) == list(range(count))
        for help_ended in helping:
            help_ended.result(WAIT)
    assert len(done) == count


def test_call_waits_for_an_item_that_a_helper_works_on() -> None:
    begun = threading.Event()
    let_end = threading.Event()
    ended = []

    def work(item: int) -> None:
        if item == 0:
            begun.set()
            assert let_end.wait(WAIT)
        else:
            let_end.set()
        ended.append(item)

    items = SharedItems(2, work)
    helper = threading.Thread(target=items.help, args=[Halt()])
    helper.start()
    assert begun.wait(WAIT)
    items.finish()
    assert sorted(ended) == [0, 1]
    helper.join()


def test_error_is_that_of_the_first_item_though_a_later_one_failed_before_it() -> None:
    failed = threading.Event()
    worked_on = []

    def work(item: int) -> None:
        worked_on.append(item)
        if item == 0:
            assert failed.wait(WAIT)
        failed.set()
        raise ValueError(item)

    items = SharedItems(9, work)
    helper = threading.Thread(target=items.help, args=[Halt()])
    helper.start()
    with pytest.raises(ValueError, match="0"):
        items.finish()
    helper.join()
    # No further item is begun after an error.
    assert sorted(worked_on) in ([0], [0, 1])


def test_error_that_ends_programs_is_raised_by_the_call_too() -> None:
    begun = threading.Event()

    def work(item: int) -> None:
        if item == 0:
            begun.set()
            raise SystemExit

    items = SharedItems(2, work)
    helper = threading.Thread(target=items.help, args=[Halt()])
    helper.start()
    assert begun.wait(WAIT)
    helper.join()
    with pytest.raises(SystemExit):
        items.finish()


def test_helper_that_is_asked_to_stop_leaves_the_rest_to_the_call() -> None:
    halt = Halt()
    threads = []

    def work(item: int) -> None:
        threads.append(threading.get_ident())
        if item == 2:
            halt.ask()

    items = SharedItems(10, work)
    helper = threading.Thread(target=items.help, args=[halt])
    helper.start()
    helper.join()
    assert len(threads) == 3
    items.finish()
    assert threads[3:] == [threading.get_ident()] * 7


def test_idle_thread_of_map_helps_the_last_call() -> None:
    together = threading.Barrier(2)
    found: set[int] = set()

    def meet(item: int) -> None:
        found.add(threading.get_ident())
        # Passes only if two threads work on the items of one call.
        together.wait(WAIT)

    def function(element: Any) -> int:
        if element == 3:
            for_each_item(6, meet)
        return int(element)

    assert list(Dataset.range(4).map(function, num_parallel_calls=2)) == [0, 1, 2, 3]
    assert len(found) == 2


def test_without_parallel_calls_no_other_thread_takes_part() -> None:
    found: set[int] = set()

    def function(element: Any) -> int:
        for_each_item(20, lambda item: found.add(threading.get_ident()))
        return int(element)

    assert list(Dataset.range(1).map(function)) == [0]
    assert len(found) == 1


def test_error_of_a_helper_is_the_error_of_its_element() -> None:
    together = threading.Barrier(2)

    def fail(element: int, item: int) -> None:
        together.wait(WAIT)
        raise ValueError(f"item {item} of element {element}")

    def function(element: Any) -> int:
        if element == 1:
            for_each_item(2, partial(fail, 1))
        return int(element)

    elements = Dataset.range(2).map(function, num_parallel_calls=2).iterate()
    assert next(elements) == 0
    with pytest.raises(ValueError, match="item 0 of element 1"):
        next(elements)


def test_leaving_a_run_waits_for_helpers() -> None:
    together = threading.Barrier(3)
    active: list[int] = []

    def work(item: int) -> None:
        active.append(item)
        if item < 2:
            together.wait(WAIT)
        active.remove(item)

    def function(element: Any) -> int:
        if element == 1:
            for_each_item(50, work)
        return int(element)

    with Dataset.range(2).map(function, num_parallel_calls=2).iterate() as elements:
        assert next(elements) == 0
        together.wait(WAIT)
    assert active == []
