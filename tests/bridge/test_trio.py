"""The bridge inside a trio program: as any sync code, or in a thread of trio's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bridge.conftest import Start

SCRIPT = "trio_program.py"
TOTAL = str(sum(range(1_000)))


def test_blocking(start: Start) -> None:
    start(SCRIPT, "blocking").finish(TOTAL, "nothing")


def test_in_a_thread(start: Start) -> None:
    start(SCRIPT, "in_a_thread").finish(TOTAL)


def test_a_trio_timeout_lets_go(start: Start) -> None:
    start(SCRIPT, "cancelled").finish("first", "timeout", "cleaned", "left")


def test_ctrl_c_while_blocking(start: Start) -> None:
    child = start(SCRIPT, "interrupted")
    child.expect("first", "ready")
    child.interrupt()
    child.finish("cleaned", "interrupted", "nothing")


def test_ctrl_c_while_a_thread_waits(start: Start) -> None:
    child = start(SCRIPT, "interrupted_in_a_thread")
    child.expect("ready")
    child.interrupt()
    child.finish("cleaned", "interrupted")


def test_anyio_in_the_producer_sees_asyncio(start: Start) -> None:
    start(SCRIPT, "anyio_inside").finish("first", "DONE")
