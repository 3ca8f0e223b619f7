"""Positions within what one reader reads of shards: all that is listed, or its share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.positions import Derived, Position
from streamrec.pipeline.engine.session import ListedShards

__all__ = ["SharePositions", "WholeListing"]


class WholeListing:
    """All that is listed, read by one reader: states hold what it was, as far as it was known.

    Args:
        listing: The shards, and what the store's listing says of them.
    """

    def __init__(self, listing: ListedShards) -> None:
        self._listing = listing
        self._told: list[Any] = []

    @property
    def whose(self) -> list[Any]:
        """How many shards are known, whether that is all, and a digest of their names, sizes and versions."""
        count = len(self._listing.paths)
        if self._told[:2] != [count, self._listing.complete]:
            self._told = self._first(count)
        return self._told

    async def check(self, whose: Sequence[Any]) -> None:
        """Refuses a state that was saved when other shards were listed.

        Raises:
            PositionMismatchError: It was.
        """
        count, complete, _ = whose
        await self._listing.until(count + 1 if complete else count)
        if self._first(count) != whose:
            raise PositionMismatchError(
                "this state was saved when the names matched other shards, or shards of other sizes or versions: "
                "resume with the same shards, or start over without the state"
            )

    def _first(self, count: int) -> list[Any]:
        known, paths = self._listing.known, self._listing.paths[:count]
        told = [(path, info.size, info.version) if (info := known.get(path)) else path for path in paths]
        complete = self._listing.complete and count == len(self._listing.paths)
        return [count, complete, blake2b(ascii(told).encode(), digest_size=8).hexdigest()]


@dataclass(frozen=True, slots=True)
class SharePositions(Derived):
    """Positions within a share: of the source, whose share it is (`whose`), and how many came before, if counted."""

    share: Any
    given: int | None = None

    def at(self, index: int) -> Position:
        source = {**self.inner.at(index)["source"], "share": self.share.whose}
        return {"source": source if self.given is None else {**source, "given": self.given + index}}
