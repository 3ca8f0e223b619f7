"""Ctrl-C cancels, cleanup finishes, then control returns; insisting gets the user out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.bridge.conftest import LIMIT
from tests.effort import SOON

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bridge.conftest import Start

SCRIPT = "interrupts.py"


def test_a_blocked_next_returns_after_the_cleanup(start: Start) -> None:
    child = start(SCRIPT, "blocked_next")
    child.expect("first", "ready")
    child.interrupt()
    child.finish("cleaned", "interrupted", "closed", "nothing")


def test_an_interrupt_that_nobody_catches_ends_the_process(start: Start) -> None:
    child = start(SCRIPT, "not_caught")
    child.expect("first", "ready")
    child.interrupt()
    child.finish("cleaned", code=-2, errors="KeyboardInterrupt")


def test_a_blocked_run_returns_after_the_cleanup(start: Start) -> None:
    child = start(SCRIPT, "blocked_run")
    child.expect("ready")
    child.interrupt()
    child.finish("cleaned", "interrupted", "nothing")


def test_in_the_loop_body_a_with_block_waits_for_the_cleanup(start: Start) -> None:
    child = start(SCRIPT, "loop_body")
    child.expect("first", "ready")
    child.interrupt()
    child.finish("cleaned", "interrupted", "nothing")


def test_while_the_loop_is_made_it_is_not_left_half_made(start: Start) -> None:
    start(SCRIPT, "loop_is_made").finish("interrupted", "9999", "nothing")


def test_a_second_one_cuts_the_cleanup_short(start: Start) -> None:
    child = start(SCRIPT, "second")
    child.expect("ready")
    child.interrupt()
    child.expect("cleaning")
    child.interrupt()
    child.finish("cut short", "interrupted []", "nothing")


def test_after_a_second_one_deaf_work_is_left_behind_in_bounded_time(start: Start) -> None:
    child = start(SCRIPT, "left_behind")
    child.expect("ready")
    child.interrupt()
    child.expect("heard 0")
    child.interrupt()
    child.expect("heard 1")
    took = child.finish("streamrec: cleanup was still running 5 s after it was interrupted, and was abandoned")
    assert SOON < took < LIMIT


def test_a_third_one_returns_at_once(start: Start) -> None:
    child = start(SCRIPT, "left_behind")
    child.expect("ready")
    child.interrupt()
    child.expect("heard 0")
    child.interrupt()
    child.expect("heard 1")
    child.interrupt()
    assert child.finish("no note") < SOON


def test_an_error_of_the_cleanup_is_noted_on_the_interrupt(start: Start) -> None:
    child = start(SCRIPT, "failing_cleanup")
    child.expect("ready")
    child.interrupt()
    child.finish("streamrec: cleanup raised OSError('no upload to abort')", "nothing")


@pytest.mark.timeout(120)
def test_at_any_instruction(start: Start) -> None:
    start(SCRIPT, "any_instruction").finish("often", "nothing")


def test_at_every_call(start: Start) -> None:
    start(SCRIPT, "every_call").finish("often", "nothing")


def test_a_shard_that_is_being_written_is_whole_or_not_there(start: Start, tmp_path: Path) -> None:
    start(SCRIPT, "writer", str(tmp_path / "shard")).finish("often", "nothing")
