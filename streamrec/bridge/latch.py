"""A latch: closed, then open for ever; waiting for it can be interrupted at any instruction.

Why not `threading.Event`: it is a Condition in Python. A KeyboardInterrupt between two of its lines can
leave its lock held, and then the loop thread hangs in `set`. Here each waiter brings a lock of its own,
that only the opener releases: an interrupted waiter leaves nothing behind but a lock that nobody looks at.
"""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["Latch"]


class Latch:
    """Opens once. Any number of threads may wait; `open` may come from any thread, more than once."""

    def __init__(self) -> None:
        self.is_open = False
        self._waiters: deque[threading.Lock] = deque()

    def open(self) -> None:
        """Let all waiters go, those that come later included."""
        self.is_open = True
        for _ in range(len(self._waiters)):
            try:
                self._waiters.popleft().release()
            except IndexError:  # a second opener took it
                return

    def wait(self, timeout: float = -1) -> bool:
        """Block until the latch is open.

        Args:
            timeout: Seconds; -1 waits for ever.

        Returns:
            Whether it is open.
        """
        if self.is_open:
            return True
        lock = threading.Lock()
        lock.acquire()
        self._waiters.append(lock)
        # Looked at again after joining the queue: an opener either finds this waiter or was seen here.
        return self.is_open or lock.acquire(timeout=timeout)
