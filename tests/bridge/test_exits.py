"""At the interpreter's exit pending work is cancelled and awaited, quietly, in time, the exit code kept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.bridge.conftest import LIMIT
from tests.effort import SOON

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bridge.conftest import Start

SCRIPT = "exits.py"
WAYS = [("return", 0, ""), ("exit", 3, ""), ("exception", 1, "LookupError"), ("thread", 0, "")]


@pytest.mark.parametrize(("how", "code", "errors"), WAYS)
def test_pending_work_is_awaited(start: Start, how: str, code: int, errors: str) -> None:
    child = start(SCRIPT, "pending", how)
    child.expect("leaving")
    assert child.finish("cleaned", code=code, errors=errors) < SOON


@pytest.mark.parametrize(("how", "code", "errors"), WAYS)
def test_a_daemon_blocked_in_next_is_silent(start: Start, how: str, code: int, errors: str) -> None:
    child = start(SCRIPT, "blocked_daemon", how)
    child.expect("leaving")
    assert child.finish("cleaned", code=code, errors=errors) < SOON


def test_a_daemon_blocked_in_run_is_silent(start: Start) -> None:
    child = start(SCRIPT, "blocked_run")
    child.expect("leaving")
    assert child.finish("cleaned") < SOON


def test_a_thread_that_is_joined_gets_everything(start: Start) -> None:
    start(SCRIPT, "working_thread").finish("leaving", str(sum(range(1_000))))


@pytest.mark.parametrize(("how", "code"), [("return", 0), pytest.param("exit", 3, marks=pytest.mark.thorough)])
def test_cleanup_that_hangs_is_bounded(start: Start, how: str, code: int) -> None:
    child = start(SCRIPT, "hanging", how)
    child.expect("leaving")
    assert SOON < child.finish("deaf", code=code) < LIMIT


def test_a_second_thought_at_exit_leaves_at_once(start: Start) -> None:
    child = start(SCRIPT, "hanging", "exit")
    child.expect("leaving", "deaf")
    child.interrupt()
    assert child.finish(code=3) < SOON


def test_an_error_of_the_cleanup_is_logged(start: Start) -> None:
    child = start(SCRIPT, "failing_cleanup")
    child.finish("leaving", errors="OSError: no upload to abort")


def test_forgotten_tasks_are_awaited(start: Start) -> None:
    start(SCRIPT, "subtasks").finish("first", "task cleaned")


def test_a_task_started_meanwhile_is_awaited(start: Start) -> None:
    start(SCRIPT, "newborn").finish("child cleaned", "closed")


def test_exit_handlers_before_and_after(start: Start) -> None:
    start(SCRIPT, "late").finish("leaving", "42", "cleaned", "True", "closed")


@pytest.mark.parametrize(("row", "lines"), [("forgotten_writer", "1"), ("dropped_writer", "1 0")])
def test_a_writer_that_nobody_closed_leaves_no_shard_and_says_so(
    start: Start, tmp_path: Path, row: str, lines: str
) -> None:
    path = str(tmp_path / "shard")
    start(SCRIPT, row, path).finish(*lines.split(), errors=f"{path}: its TFRecordWriter was dropped without close()")
    assert not os.path.exists(path)
