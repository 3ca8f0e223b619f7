"""CountedShards: parts of shards whose numbers of records are known before any is opened.

A folder of TensorFlow Datasets says how many records each shard has. So a slice of a split, the
number of elements, and each rank's share follow without a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamrec.display import display_repr
from streamrec.pipeline.engine.ranks import Rank, Reader
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.session import OpenSource, Session
from streamrec.pipeline.engine.stage import UNKNOWN_CARDINALITY
from streamrec.pipeline.engine.states import format_names
from streamrec.pipeline.sources.shards.distribute import AssignedShards
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.shards import Portion, count_records


@display_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class CountedShards(Shards):
    """Parts of shards, in order; `filenames` are their shards.

    Each part has its number of records: by `last`, or by what its shard is expected to have.
    """

    portions: tuple[Portion, ...]

    def lines(self) -> Iterator[str]:
        names = format_names(self.filenames)
        bounds = [(portion.first, portion.last) for portion in self.portions if not portion.is_all]
        yield f"CountedShards({self.plan!r}, {names}{f', parts={bounds}' if bounds else ''})"

    @property
    def known_portions(self) -> tuple[Portion, ...]:
        return self.portions

    def cardinality(self, rank: Rank | None) -> int:
        # Damaged records that are left out make fewer.
        if self.options.on_error != "raise":
            return UNKNOWN_CARDINALITY
        return count_records(self.portions)

    async def listed(self, session: Session) -> OpenSource:
        return self._fixed(await session.open(self, self.stores, 0, (), self.memo))

    async def opened(self, context: RunContext) -> OpenSource:
        ahead = self.read_ahead(context.budget)
        return self._fixed(await context.session.open(self, self.stores, ahead, (), self.memo))

    def _fixed(self, opened: OpenSource) -> OpenSource:
        # One listing for all epochs, since runs keep the shards' versions by its identity.
        listing = self.memo.setdefault(FixedListing, FixedListing(self.portions))
        return OpenSource(opened.storages, listing)


class FixedListing(AssignedShards):
    """A complete listing of given portions, which all readers share."""

    def __init__(self, portions: Sequence[Portion]) -> None:
        super().__init__(Reader(0, 1), portions)

    async def check_fingerprint(self, saved: Sequence[Any]) -> None:
        state: Mapping[str, Any] = {"share": list(saved), "given": 0}
        self.check(state)
