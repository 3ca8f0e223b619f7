"""What tunes itself while a pipeline runs. Pure: told what happened and when, each says what to do next.

- `TaskSize`: how many elements go to a thread at a time. A hop there and back costs some 0.1 ms, so short calls go many
  at a time; long ones go alone, or their results would come in lumps.
- `CallCount`: how many calls there should be at once. Twice as many are tried while the consumer waits and all are at
  work (once that has failed, half as many more). They stay where they bring at least half of what they would bring if
  nothing were full: the processor, the interpreter's lock, a service. There is one less where the consumer has not
  waited for long.
- `PrefetchDepth`: how many bytes a prefetch runs ahead. It grows where its queue was empty after it had been full:
  then the queue was too small to bridge a gap. An empty queue that never filled up would not be helped by a larger one.

Source of the rule for `PrefetchDepth`: tf.data's prefetch autotuner (prefetch_autotuner.h); for `CallCount`: see
`KneeSearch`.
"""

from __future__ import annotations

from typing import Final

from streamrec.storage.connections import KneeSearch

__all__ = ["FIRST_DEPTH", "CallCount", "PrefetchDepth", "TaskSize"]

RUN_SECONDS: Final = 10e-3
"""How long a thread should be busy with what it is given: a hundred times what a hop costs, ten times on a machine
that has other things to do."""

MAX_SIZE: Final = 4096
"""Never more elements than this at a time."""

FIRST_DEPTH: Final = 8 << 20
"""Bytes that a prefetch begins with: a chunk that is taken, and one that comes."""


class TaskSize:
    """How many elements go to a thread at a time.

    Args:
        most_bytes: What the results of a run should weigh at most.

    Attributes:
        size: Their number now.
        bytes_each: About what one result weighs; 0 before the first.
    """

    def __init__(self, most_bytes: int) -> None:
        self.size = 1
        self.bytes_each = 0.0
        self._seconds_each = 0.0
        self._most_bytes = most_bytes

    def ran(self, count: int, seconds: float, nbytes: int) -> None:
        """Takes the time and the size of the results of a run of `count` elements into account.

        >>> size = TaskSize(most_bytes=1 << 20)
        >>> for _ in range(9):
        ...     size.ran(size.size, size.size * 4e-6, size.size * 100)
        >>> size.size
        2500
        """
        first = not self.bytes_each
        self._seconds_each = blend(self._seconds_each, seconds / count, first)
        self.bytes_each = blend(self.bytes_each, max(nbytes / count, 1.0), first)
        by_time = round(RUN_SECONDS / max(self._seconds_each, 1e-9))
        by_bytes = int(self._most_bytes / self.bytes_each)
        self.size = max(1, min(by_time, by_bytes, 8 * self.size, MAX_SIZE))


def blend(old: float, new: float, first: bool) -> float:
    """A mean in which the last few count."""
    return new if first else 0.75 * old + 0.25 * new


class CallCount(KneeSearch):
    """How many calls should run at once.

    Args:
        start: The number to begin with.
        most: The largest number.
        least: The smallest number. If all three are equal, the number stays.

    Attributes:
        target: The number now.

    Examples:
        >>> count = CallCount(start=2, most=32)
        >>> for _ in range(20):  # the consumer always waits, and six calls are as good as any more
        ...     count.end_window(1.0, min(count.target, 6) * 100, waited=0.9)
        >>> count.target
        8
    """

    def __init__(self, start: int, most: int, least: int = 1) -> None:
        super().__init__(start, most)
        self._least = least
        self._calm = 0
        self._patience = 8  # calm windows after which there is one call less; doubled each time that was one too few
        self._shrunk = False

    def due(self, seconds: float, calls: int) -> bool:
        """Whether a window has been long enough to tell something."""
        return seconds >= 0.1 and calls >= 2 * self.target

    def end_window(self, seconds: float, calls: int, waited: float) -> None:
        """A window is over.

        Args:
            seconds: How long it was.
            calls: How many calls ended in it.
            waited: Seconds of it that the consumer waited while as many calls as allowed were at work.
        """
        rate, short = calls / seconds, waited > 0.05 * seconds
        if not self.settle(rate, enough=not short):
            return
        self._calm = 0 if waited else self._calm + 1
        if self.rests():
            return
        if short and self.target < self.most:
            if self._shrunk:
                self._patience, self._shrunk = min(2 * self._patience, 256), False
            self.grow(rate, max(self.target // 2 if self.failed else self.target, 1))
        elif self._calm >= self._patience and self.target > self._least:
            self.target, self._calm, self._shrunk = self.target - 1, 0, True


class PrefetchDepth:
    """How many bytes a prefetch runs ahead.

    Args:
        most: The largest number of bytes.

    Attributes:
        limit: The number now.
    """

    def __init__(self, most: int) -> None:
        self.limit = min(FIRST_DEPTH, most)
        self._most = most
        self._was_full = False

    def observe(self, empty: bool, full: bool) -> int:
        """Its consumer comes.

        Args:
            empty: Whether nothing was there for it.
            full: Whether the queue has held something back since the consumer came last.

        Returns:
            The limit from now on.

        >>> depth = PrefetchDepth(most=1 << 30)
        >>> depth.observe(empty=True, full=False) == depth.observe(empty=False, full=True) == FIRST_DEPTH
        True
        >>> depth.observe(empty=True, full=False) == 2 * FIRST_DEPTH
        True
        """
        self._was_full = self._was_full or full
        if empty and self._was_full:
            self._was_full = False
            self.limit = min(2 * self.limit, self._most)
        return self.limit
