"""Fast paths: ways of our own over a client's private details, which change with each of its releases.

The rule of the house: a fast path never fails a request that the client itself would get answered. What goes wrong in
it, and is no answer of the store and no failure of the network, sends what it was for (a bucket, a session) to the
client's own way for good; the log says so once a process, and the statistics count it (`Counts.fallbacks`).
"""

from __future__ import annotations

import logging
from collections.abc import Hashable

__all__ = ["FastPath"]

logger = logging.getLogger("streamrec")

_said: set[tuple[str, Hashable]] = set()


class FastPath:
    """One kind of fast path, and what it is not taken for any more.

    Args:
        what: What it does, for the log: "repeating the client's GET".

    Attributes:
        fallbacks: How often it was left for the client's own way.
    """

    def __init__(self, what: str) -> None:
        self.fallbacks = 0
        self._what = what
        self._left: set[Hashable] = set()

    def is_open(self, key: Hashable) -> bool:
        """Whether it may be taken for this."""
        return key not in self._left

    def leave(self, key: Hashable, reason: BaseException | str) -> None:
        """It is not taken for this any more."""
        if key not in self._left:
            self._left.add(key)
            self.fallbacks += 1
            if (self._what, key) in _said:
                return
            _said.add((self._what, key))
            told = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
            logger.warning(
                "%s does not work here (%s: %s): from now on the client's own way is taken, which is slower",
                self._what,
                key,
                told,
            )
