"""How one piece of work begins and ends: its context, its outcome, and who waits for it."""

import asyncio
import threading
from contextvars import ContextVar

import pytest

from streamrec.bridge.job import Ending, Work

VARIABLE: ContextVar[str] = ContextVar("variable", default="unset")


def test_all_waiting_threads_get_the_outcome() -> None:
    ending: Ending[int] = Ending()
    results: list[int] = []

    def wait() -> None:
        ending.wait()
        results.append(ending.get())

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not ending.is_set
    ending.set(None, result=7)
    for thread in threads:
        thread.join()
    assert results == [7, 7, 7]


def test_a_wait_with_a_limit_says_whether_the_work_has_ended() -> None:
    ending: Ending[int] = Ending()
    assert not ending.wait(0)
    ending.set(None, result=1)
    assert ending.wait(0)


def test_every_caller_gets_the_error_and_it_counts_as_taken_once() -> None:
    ending: Ending[int] = Ending()
    error = LookupError("gone")
    ending.set(error)
    for _ in range(2):
        with pytest.raises(LookupError) as caught:
            ending.get()
        assert caught.value is error
    assert ending.take_error() is error
    assert ending.take_error() is None


async def test_work_runs_in_the_context_in_which_it_was_made() -> None:
    async def change() -> str:
        found = VARIABLE.get()
        VARIABLE.set("changed")
        return found

    token = VARIABLE.set("maker's")
    work = Work(change, ())
    VARIABLE.reset(token)
    task = work.begin(asyncio.get_running_loop())
    assert await task == "maker's"
    assert VARIABLE.get() == "unset"
    assert "change" in task.get_name()
