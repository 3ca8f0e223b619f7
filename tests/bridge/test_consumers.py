"""Early leave, several consumers, a running loop, the loop's own thread, a loop that is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bridge.conftest import Start

SCRIPT = "consumers.py"


def test_break_cancels_promptly(start: Start) -> None:
    start(SCRIPT, "leaves_by_break").finish("first", "cleaned", "nothing")


def test_an_exception_in_the_body_cancels_promptly(start: Start) -> None:
    start(SCRIPT, "leaves_by_exception").finish("cleaned", "first", "nothing")


def test_a_with_block_waits_for_the_cleanup(start: Start) -> None:
    start(SCRIPT, "with_block").finish("cleaned", "first", "nothing")


def test_a_producer_that_never_waits_is_cancelled(start: Start) -> None:
    start(SCRIPT, "producer_never_waits").finish("0", "cleaned", "nothing")


def test_in_a_notebook(start: Start) -> None:
    start(SCRIPT, "notebook").finish("True", "first", "cleaned", "first", "cleaned", "nothing")


def test_calls_on_the_loop_thread_are_refused(start: Start) -> None:
    start(SCRIPT, "loop_thread").finish("True", "first", "cleaned")


def test_two_iterators_zipped(start: Start) -> None:
    start(SCRIPT, "zipped").finish("True", "nothing")


def test_two_threads_on_one_iterator_and_on_two(start: Start) -> None:
    start(SCRIPT, "two_threads").finish("True", "True", "nothing")


def test_a_close_from_another_thread_tells_the_one_that_waits(start: Start) -> None:
    start(SCRIPT, "closed_by_another_thread").finish("cleaned", "told", "nothing")


def test_a_stopped_loop_is_an_error_and_not_a_hang(start: Start) -> None:
    start(SCRIPT, "stopped_loop").finish("cleaned", "True", "True", "True")


def test_a_loop_that_cannot_be_made_is_an_error_and_not_a_hang(start: Start) -> None:
    half_made = "unclosed event loop"  # asyncio warns of its own
    start(SCRIPT, "no_loop").finish("EMFILE", "True", "nothing", errors=half_made)


def test_an_exit_in_a_task_leaves_the_loop_running(start: Start) -> None:
    start(SCRIPT, "exits_on_the_loop").finish("first", "caught", "delivered", "nothing")
