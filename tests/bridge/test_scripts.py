"""The bridge's contract in processes of their own: the output of each function in `scripts/`, and
its process's end.

- consumers: leaving early, several consumers, a running loop, the loop's own thread, a loop that is
  stopped.
- forks: a forked or spawned child works with a loop thread of its own, and the parent is not
  affected.
- trio_program: the bridge inside a trio program, as any sync code, or in a thread of trio's.
- exits: at the interpreter's exit pending work is cancelled and awaited, quietly and in time; the
  exit code stays.
- interrupts: Ctrl-C cancels, cleanup finishes, then control returns; a second and a third one end
  it sooner.
"""

import os
from pathlib import Path

import pytest

from tests.bridge.conftest import LIMIT, Start
from tests.effort import SECONDS_TO_END
from tests.runs import write_shards

USED_AGAIN = "anew True 42"
CHILD_LEFT = "child left with 7"
SUM_BELOW_1000 = str(sum(range(1_000)))

OUTPUT = [
    ("consumers", "leaves_by_exception", "cleaned", "first", "nothing"),
    ("consumers", "producer_never_waits", "0", "cleaned", "nothing"),
    ("consumers", "loop_thread", "True", "first", "cleaned"),
    ("consumers", "stopped_loop", "cleaned", "True", "True", "True"),
    ("consumers", "exits_on_the_loop", "first", "caught", "delivered", "nothing"),
    ("forks", "while_iterating", "True", USED_AGAIN, "nothing", CHILD_LEFT, "True", "nothing"),
    ("forks", "while_work_waits", USED_AGAIN, CHILD_LEFT, "first", "cleaned", "nothing"),
    ("forks", "with_locks_held", USED_AGAIN, CHILD_LEFT, USED_AGAIN),
    ("forks", "while_a_thread_waits", USED_AGAIN, CHILD_LEFT, "cleaned", "False", "nothing"),
    ("forks", "from_the_loop", USED_AGAIN, CHILD_LEFT, "nothing"),
    ("forks", "grandchild", USED_AGAIN, USED_AGAIN, USED_AGAIN, CHILD_LEFT, CHILD_LEFT),
    ("trio_program", "blocking", SUM_BELOW_1000, "nothing"),
    ("trio_program", "cancelled", "first", "timeout", "cleaned", "left"),
    ("trio_program", "anyio_inside", "first", "DONE"),
    ("exits", "working_thread", "leaving", str(sum(range(1_000)))),
    ("exits", "subtasks", "first", "task cleaned"),
    ("exits", "task_started_during_the_exit", "child cleaned", "closed"),
    ("exits", "exit_handlers", "leaving", "42", "cleaned", "True", "closed"),
    ("interrupts", "loop_is_made", "interrupted", "9999", "nothing"),
    ("interrupts", "interrupts_at_every_call", "often", "nothing"),
    ("interrupts", "interrupts_at_random_moments", "often", "nothing"),
]


@pytest.mark.parametrize("row", OUTPUT, ids=lambda row: row[1])
def test_a_script_prints_these_lines(start: Start, row: tuple[str, ...]) -> None:
    script, name, *lines = row
    start(f"{script}.py", name).finish(*lines)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize(
    ("target", "lines"),
    [
        ("mp_target", [USED_AGAIN, "word"]),
        ("mp_pending", ["first", "cleaned"]),
        ("mp_threads", ["cleaned", "True"]),
    ],
)
def test_a_child_of_multiprocessing_works_and_awaits_cleanup_at_its_end(
    start: Start, method: str, target: str, lines: list[str]
) -> None:
    start("forks.py", "processes", method, target).finish(
        *lines, "child left with 0", "True", "nothing"
    )


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_pool_of_processes_works(start: Start, method: str) -> None:
    start("forks.py", "pool", method).finish("[0, 1, 4, 9]")


def test_a_loop_that_cannot_be_made_is_an_error_and_not_a_hang(start: Start) -> None:
    warning = "unclosed event loop"  # asyncio warns of its own half-made loop
    start("consumers.py", "no_loop").finish("EMFILE", "True", "nothing", errors=warning)


@pytest.mark.parametrize("row", ["waiting_producer", "blocked_daemon", "blocked_run"])
@pytest.mark.parametrize(
    ("how", "code", "errors"),
    [("return", 0, ""), ("exit", 3, ""), ("exception", 1, "LookupError"), ("thread", 0, "")],
)
def test_running_work_is_awaited_at_exit(
    start: Start, row: str, how: str, code: int, errors: str
) -> None:
    child = start("exits.py", row, how)
    child.expect("leaving")
    assert child.finish("cleaned", code=code, errors=errors) < SECONDS_TO_END


@pytest.mark.parametrize(
    ("how", "code"), [("return", 0), pytest.param("exit", 3, marks=pytest.mark.thorough)]
)
def test_cleanup_that_hangs_ends_in_bounded_time(start: Start, how: str, code: int) -> None:
    child = start("exits.py", "cleanup_that_hangs", how)
    child.expect("leaving")
    assert SECONDS_TO_END < child.finish("deaf", code=code) < LIMIT


def test_an_interrupt_during_the_exit_leaves_at_once(start: Start) -> None:
    child = start("exits.py", "cleanup_that_hangs", "exit")
    child.expect("leaving", "deaf")
    child.interrupt()
    assert child.finish(code=3) < SECONDS_TO_END


def test_an_error_of_the_cleanup_is_logged(start: Start) -> None:
    start("exits.py", "failing_cleanup").finish(
        "leaving", "cleaned", errors="OSError: no upload to abort"
    )


def test_a_dropped_writer_leaves_no_shard_and_warns(start: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "shard")
    start("exits.py", "dropped_writer", path).finish(
        "1", "0", errors=f"{path}: its TFRecordWriter was dropped without close()"
    )
    assert not os.path.exists(path)


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("exception", 1), ("exit", 3)])
@pytest.mark.parametrize("case", ["cached", "sync_writer", "async_writer"])
def test_a_program_that_ends_with_something_open_prints_at_most_one_line_and_leaves_no_file(
    start: Start, tmp_path: Path, case: str, how: str, code: int
) -> None:
    write_shards(tmp_path, [[b"%d" % number for number in range(50_000)]], "x.tfrecord")
    child = start("exits.py", "something_open", str(tmp_path), case, how)
    child.finish(
        code=code,
        errors="LookupError" if how == "exception" else "" if case == "cached" else "dropped",
    )
    lines = child.errors().splitlines()
    assert sum("was dropped without close()" in line for line in lines) == (case != "cached"), lines
    # With those of the program's own traceback, without the marks under calls of newer Pythons.
    told = [line for line in lines if line.strip(" ~^")]
    assert len(told) <= 1 + 12 * (how == "exception"), lines
    assert [path.name for path in tmp_path.iterdir()] == ["x.tfrecord"]


def test_a_dropped_async_iterator_leaves_no_file_open(start: Start, tmp_path: Path) -> None:
    write_shards(tmp_path, [[b"%d" % number for number in range(50_000)]], "x.tfrecord")
    start("exits.py", "dropped_iterators", str(tmp_path)).finish()


CLEANUP_FAILED = "streamrec: cleanup raised OSError('no upload to abort')"
ABANDONED = "streamrec: cleanup was still running 5 s after it was interrupted, and was abandoned"
INTERRUPTED: list[tuple[str, str, list[list[str]], list[str]]] = [
    (
        "interrupts",
        "blocked_next",
        [["first", "ready"]],
        ["cleaned", "interrupted", "closed", "nothing"],
    ),
    ("interrupts", "blocked_run", [["ready"]], ["cleaned", "interrupted", "nothing"]),
    ("interrupts", "loop_body", [["first", "ready"]], ["cleaned", "interrupted", "nothing"]),
    (
        "interrupts",
        "second_interrupt",
        [["ready"], ["cleaning"]],
        ["cut short", "interrupted []", "nothing"],
    ),
    ("interrupts", "abandoned_work", [["ready"], ["heard 0"], ["heard 1"]], ["no note"]),
    ("interrupts", "failing_cleanup", [["first", "ready"]], ["cleaned", CLEANUP_FAILED, "nothing"]),
    ("trio_program", "interrupted", [["first", "ready"]], ["cleaned", "interrupted", "nothing"]),
    ("trio_program", "interrupted_in_a_thread", [["ready"]], ["cleaned", "interrupted"]),
]
"""The lines before each Ctrl-C, and those after the last one."""


@pytest.mark.parametrize(
    ("script", "row", "before", "after"), INTERRUPTED, ids=[row for _, row, _, _ in INTERRUPTED]
)
def test_ctrl_c_cancels_a_second_one_cuts_cleanup_short_and_a_third_one_returns_at_once(
    start: Start, script: str, row: str, before: list[list[str]], after: list[str]
) -> None:
    child = start(f"{script}.py", row)
    for lines in before:
        child.expect(*lines)
        child.interrupt()
    assert child.finish(*after) < (SECONDS_TO_END if len(before) > 2 else LIMIT)


def test_work_that_ignores_two_interrupts_is_abandoned_in_bounded_time(start: Start) -> None:
    child = start("interrupts.py", "abandoned_work")
    for line in ("ready", "heard 0"):
        child.expect(line)
        child.interrupt()
    child.expect("heard 1")
    assert SECONDS_TO_END < child.finish(ABANDONED) < LIMIT


def test_an_uncaught_interrupt_ends_the_process(start: Start) -> None:
    child = start("interrupts.py", "not_caught")
    child.expect("first", "ready")
    child.interrupt()
    child.finish("cleaned", code=-2, errors="KeyboardInterrupt")


def test_a_shard_that_is_being_written_is_whole_or_not_there(start: Start, tmp_path: Path) -> None:
    start("interrupts.py", "interrupts_of_a_writer", str(tmp_path / "shard")).finish(
        "often", "nothing"
    )
