"""A forked or spawned child works with a loop thread of its own, and the parent does not notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.bridge.conftest import Start

SCRIPT = "forks.py"
ANEW = "anew True 42"
LEFT = "child left with 7"
METHODS = ["fork", "forkserver", "spawn"]


def test_in_the_middle_of_an_iteration(start: Start) -> None:
    start(SCRIPT, "while_iterating").finish("True", ANEW, "nothing", LEFT, "True", "nothing")


def test_suspended_work_stays_the_parents(start: Start) -> None:
    child = start(SCRIPT, "while_work_waits")
    child.finish(ANEW, LEFT, "first", "cleaned", "nothing")


def test_locks_held_at_the_fork_stop_nobody(start: Start) -> None:
    start(SCRIPT, "with_locks_held").finish(ANEW, LEFT, ANEW)


def test_while_another_thread_is_blocked(start: Start) -> None:
    start(SCRIPT, "while_a_thread_waits").finish(ANEW, LEFT, "cleaned", "told", "nothing")


def test_from_the_loop_thread_itself(start: Start) -> None:
    start(SCRIPT, "from_the_loop").finish(ANEW, LEFT, "nothing")


def test_a_fork_of_a_fork(start: Start) -> None:
    start(SCRIPT, "grandchild").finish(ANEW, ANEW, ANEW, LEFT, LEFT)


@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing(start: Start, method: str) -> None:
    child = start(SCRIPT, "processes", method, "mp_target")
    child.finish(ANEW, "word", "child left with 0", "True", "nothing")


@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing_awaits_the_cleanup_of_pending_work(start: Start, method: str) -> None:
    child = start(SCRIPT, "processes", method, "mp_pending")
    child.finish("first", "cleaned", "child left with 0", "True", "nothing")


@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing_tells_threads_that_still_wait(start: Start, method: str) -> None:
    child = start(SCRIPT, "processes", method, "mp_threads")
    child.finish("cleaned", "True", "child left with 0", "True", "nothing")


@pytest.mark.parametrize("method", METHODS)
def test_a_pool(start: Start, method: str) -> None:
    start(SCRIPT, "pool", method).finish("[0, 1, 4, 9]")
