"""Parameters that are tuned while a pipeline runs.

Pure: each class gets times and counts, and computes its number.

- `TaskSize`: how many elements go to a thread at a time. A hop to a thread and back costs about 0.1
  ms, so short calls go many at a time; long calls go alone, or their results would come in bursts.
- `CallCount`: how many calls run at once. While the consumer waits and all calls are busy, it tries
  twice as many; after that failed once, half as many more. It keeps them if they give at least half
  of the speed that they would give without a bottleneck such as the processor, the GIL or a
  service. It removes one call when the consumer has not waited for long.
- `PrefetchDepth`: how many bytes a prefetch runs ahead. It grows when the queue is empty after it
  was full, since then it was too small to bridge a gap. If the queue never filled up, a larger one
  would not help.

Source of the rule for `PrefetchDepth`: tf.data's prefetch autotuner (prefetch_autotuner.h); for
`CallCount`: see `KneeSearch`.
"""

from __future__ import annotations

from typing import Final

from streamrec.storage.knee_search import KneeSearch

RUN_SECONDS: Final = 10e-3
"""How long a thread should work on one task.

It is 100 times the cost of a hop, or 10 times on a busy machine.
"""

MAX_SIZE: Final = 4096
"""The largest number of elements in a task."""

FIRST_DEPTH: Final = 8 << 20
"""How many bytes a prefetch runs ahead at first: a chunk that is consumed, and one that arrives."""


class TaskSize:
    """How many elements go to a thread at a time.

    It is `size`, limited so that their results weigh at most `max_bytes`. Recent ones weigh
    `bytes_each` on average; 0 before the first.
    """

    def __init__(self, max_bytes: int) -> None:
        self.size = 1
        self.bytes_each = 0.0
        self._seconds_each = 0.0
        self._max_bytes = max_bytes

    def update(self, count: int, seconds: float, nbytes: int) -> None:
        """Counts a task of `count` elements, how long it took, and what its results weigh.

        >>> size = TaskSize(max_bytes=1 << 20)
        >>> for _ in range(9):
        ...     size.update(size.size, size.size * 4e-6, size.size * 100)
        >>> size.size
        2500
        """
        weight = 0.25 if self.bytes_each else 1.0  # a moving average
        self._seconds_each += weight * (seconds / count - self._seconds_each)
        self.bytes_each += weight * (max(nbytes / count, 1.0) - self.bytes_each)
        by_time = round(RUN_SECONDS / max(self._seconds_each, 1e-9))
        by_bytes = int(self._max_bytes / self.bytes_each)
        self.size = max(1, min(by_time, by_bytes, 8 * self.size, MAX_SIZE))


class CallCount(KneeSearch):
    """How many calls should run at once: `target`, from `least` to `most`.

    If `start` equals both, it never changes.

    Examples:
        >>> count = CallCount(start=2, most=32)
        >>> for _ in range(20):  # the consumer always waits, and more than six calls are not faster
        ...     count.end_window(1.0, min(count.target, 6) * 100, waited=0.9)
        >>> count.target
        8
    """

    def __init__(self, start: int, most: int, least: int = 1) -> None:
        super().__init__(start, most)
        self._least = least
        self._calm = 0
        # Calm windows before a call is removed; doubled each time that was one too many.
        self._patience = 8
        self._shrunk = False

    def due(self, seconds: float, calls: int) -> bool:
        """Whether a window is long enough to measure a rate."""
        return seconds >= 0.1 and calls >= 2 * self.target

    def end_window(self, seconds: float, calls: int, waited: float) -> None:
        """Adapts the number after a window in which this many calls ended.

        The consumer waited for some seconds while the allowed number of calls was busy.
        """
        rate = calls / seconds
        short = waited > 0.05 * seconds
        if not self.settle(rate, enough=not short):
            return
        self._calm = 0 if waited else self._calm + 1
        if self.rests():
            return
        if short and self.target < self.most:
            if self._shrunk:
                self._patience = min(2 * self._patience, 256)
                self._shrunk = False
            self.grow(rate, max(self.target // 2 if self.failed else self.target, 1))
        elif self._calm >= self._patience and self.target > self._least:
            self.target -= 1
            self._calm = 0
            self._shrunk = True


class PrefetchDepth:
    """How many bytes a prefetch runs ahead: `limit`."""

    def __init__(self, most: int) -> None:
        self.limit = min(FIRST_DEPTH, most)
        self._most = most
        self._was_full = False

    def observe(self, empty: bool, full: bool) -> int:
        """Adapts the limit when the consumer asks for a chunk, and returns it.

        It depends on whether the queue is empty now, and has been full since the last call.

        >>> depth = PrefetchDepth(most=1 << 30)
        >>> depth.observe(empty=True, full=False) == FIRST_DEPTH
        True
        >>> depth.observe(empty=False, full=True) == FIRST_DEPTH
        True
        >>> depth.observe(empty=True, full=False) == 2 * FIRST_DEPTH
        True
        """
        self._was_full = self._was_full or full
        if empty and self._was_full:
            self._was_full = False
            self.limit = min(2 * self.limit, self._most)
        return self.limit
