"""Versions: how the simulated store tells one state of an object from the next.

A version follows from the file (size and time of the last write) and from how often the fault `change` has
replaced the object. A replaced object has the file's length and other bytes: each is XORed with a mask that
depends on the count. So a reader that mixes two versions hands out bytes that no version holds.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

__all__ = ["Version", "Versions"]


@dataclass(frozen=True)
class Version:
    """One state of an object.

    Args:
        etag: The entity tag, with its quotes.
        generation: Google's number of the version.
        mask: What each byte of the file is XORed with.
    """

    etag: str
    generation: int
    mask: int


class Versions:
    """How often each object was replaced; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes: Counter[str] = Counter()

    def change(self, name: str) -> None:
        """Replaces the object by a new version."""
        with self._lock:
            self._changes[name] += 1

    def of(self, name: str, size: int, written: int) -> Version:
        """The version in force of an object whose file has this size and time (nanoseconds)."""
        count = self._changes.get(name, 0)
        mask = 0 if count == 0 else 1 + (count - 1) % 255
        return Version(f'"{written:x}-{size:x}-{count}"', written // 1000 + count, mask)
