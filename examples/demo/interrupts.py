"""Ctrl-C, held back for as long as something is being started that nobody would stop yet."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["without_interrupts"]


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Lets a Ctrl-C wait until the block is done; a second one does not wait.

    In `with without_interrupts(): stack.enter_context(server())` it could otherwise come when the server runs and
    the stack does not know it yet.
    """
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if held:
            raise KeyboardInterrupt
        held.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    usual = [signal.signal(number, hold) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, usual, strict=True):
            signal.signal(number, handler)
    if held:
        raise KeyboardInterrupt
