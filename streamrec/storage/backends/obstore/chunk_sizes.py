"""Chunk sizes: how many bytes obstore gathers before it hands them to Python. Pure.

Each chunk costs a future and a turn of the event loop, so chunks are large. But what obstore has gathered of a chunk is
lost when the connection breaks or is given up. So they follow what each object's connections give:

- `MOST` bytes, until something goes wrong.
- After a body that broke: a quarter of what it gave. So a body that gave nothing is followed by one that hands out all
  that it receives, and sizes grow again as bodies get further. A body that breaks again and again makes progress.
- A second request for bytes that another body already waits for hands out all that it receives: the connection may be
  slow, and not broken.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MOST", "ChunkSizes"]

MOST: Final = 1 << 20
"""Bytes of a chunk, on a connection that flows."""

PART: Final = 4
"""Of what a body gave before it broke, the next one's chunks are one part in so many."""

REMEMBERED: Final = 1_000
"""Objects that are remembered at the most."""


class ChunkSizes:
    """The sizes for all objects of a store.

    >>> sizes = ChunkSizes()
    >>> sizes.size("s3://b/k", 0)
    1048576
    >>> sizes.broke("s3://b/k", given=0)
    >>> sizes.size("s3://b/k", 0)
    1
    >>> sizes.broke("s3://b/k", given=65_536)
    >>> sizes.size("s3://b/k", 65_536)
    16384
    """

    __slots__ = ("_given", "_waited")

    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        self._waited: set[tuple[str, int]] = set()

    def size(self, path: str, start: int) -> int:
        """The least bytes of a chunk, for a body of this object that begins at `start`."""
        if (path, start) in self._waited:
            return 1
        given = self._given.get(path)
        return MOST if given is None else min(MOST, max(1, given // PART))

    def waits(self, path: str, position: int) -> None:
        """A body waits for its next chunk, which begins there."""
        self._waited.add((path, position))

    def came(self, path: str, position: int) -> None:
        """It waits no more."""
        self._waited.discard((path, position))

    def broke(self, path: str, given: int) -> None:
        """A body broke, or was given up, after so many bytes."""
        if len(self._given) == REMEMBERED:
            del self._given[next(iter(self._given))]
        self._given[path] = given

    def ended(self, path: str) -> None:
        """A body came to its end: the object's connections flow."""
        self._given.pop(path, None)
