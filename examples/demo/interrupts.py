"""Delays Ctrl-C while something starts that no cleanup knows yet."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["without_interrupts"]


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Delays a Ctrl-C until the block is done; a second one takes effect at once.

    In `with without_interrupts(): stack.enter_context(server())` it could otherwise arrive after
    the server has started and before the stack knows it.
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
