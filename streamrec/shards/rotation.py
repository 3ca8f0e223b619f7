"""Rotation by time: a shard is finished when it is old enough, also if no more records come.

A timer of the event loop finishes the shard; no task runs before. Its error has no caller, so that
the writer's next call raises it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Rotation:
    """Finishes shards that have become `seconds` old.

    Args:
        seconds: The age, from a shard's first record; None: never.
        finish: Finishes a shard if it is still the current one.
    """

    def __init__(
        self, seconds: float | None, finish: Callable[[object], Coroutine[Any, Any, None]]
    ) -> None:
        self._seconds = seconds
        self._finish = finish
        self._shard: object | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._finishing: asyncio.Task[None] | None = None

    def watch(self, shard: object | None) -> None:
        """Starts the timer of the current shard, if it is a new one; None: there is none."""
        if shard is self._shard or self._seconds is None:
            return
        self.stop()
        self._shard = shard
        if shard is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._begin, shard)

    @property
    def has_ended(self) -> bool:
        """Whether the timer has finished a shard, or failed to, since the last `check`."""
        return self._finishing is not None and self._finishing.done()

    def check(self) -> None:
        """Raises the error of a shard that could not be finished, once."""
        task = self._finishing
        if task is not None and self.has_ended:
            self._finishing = None
            if not task.cancelled():
                task.result()

    def stop(self) -> None:
        """Stops the timer; a shard that is being finished continues."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._shard = None

    def _begin(self, shard: object) -> None:
        """Begins to finish a shard, in a task of its own."""
        self._finishing = asyncio.get_running_loop().create_task(self._finish(shard))
        # Its error is kept for `check`; asyncio must not log it as never retrieved.
        self._finishing.add_done_callback(lambda task: task.cancelled() or task.exception())
