"""The source: shards fetched at once, interleaved in order, within a byte budget.

Each shard in the cycle, and a few after it, is fetched by a task of its own into its queue, and
waits there when the queue holds its share of the budget. `ShardInterleave` decides whose turn it
is, `OpenAhead` which shards are opened, and the run's ledger how much is read; this file takes what
has arrived.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from typing import Any

from streamrec.display import display_repr
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Derived, Position, Positions
from streamrec.pipeline.elements.specs import record_spec
from streamrec.pipeline.engine.description import Source
from streamrec.pipeline.engine.queue import run_ahead
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.session import Memo, OpenSource, Session, SourceStores
from streamrec.pipeline.engine.states import format_names
from streamrec.pipeline.engine.versions import ComparedVersions, SavedVersions, ShardVersions
from streamrec.pipeline.sources.interleave import Plan
from streamrec.pipeline.sources.shards.fetch import Fetching, Waiters
from streamrec.pipeline.sources.shards.open_ahead import OpenAhead, ShardMemory
from streamrec.pipeline.sources.shards.shard_queue import ShardInterleave, pull
from streamrec.shards import (
    Listing,
    Portion,
    ReadOptions,
)
from streamrec.storage.ledger import Account
from streamrec.storage.tasks import background


@display_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class Shards(Source):
    """The description that TFRecordDataset makes: shards, stores, and the order of reading."""

    filenames: tuple[str, ...]
    plan: Plan = Plan()
    options: ReadOptions = ReadOptions()
    stores: SourceStores = field(default=SourceStores(), repr=False)
    memo: Memo = field(default_factory=Memo, init=False, compare=False, repr=False)

    def lines(self) -> Iterator[str]:
        yield f"Shards({self.plan!r}, {format_names(self.filenames)})"

    async def listed(self, session: Session) -> OpenSource:
        """The stores and the listing, without reading records."""
        return await session.open(self, self.stores, 0, self.filenames, self.memo)

    async def opened(self, context: RunContext) -> OpenSource:
        """Its stores and listing.

        Its stores may hold ahead what its queues leave of the budget, or half of it.
        """
        ahead = self.read_ahead(context.budget)
        return await context.session.open(self, self.stores, ahead, self.filenames, self.memo)

    def read_ahead(self, budget: int) -> int:
        """How many bytes the stores may hold ahead."""
        return ShardMemory(plan=self.plan, budget=budget).range_bytes

    @property
    def known_portions(self) -> tuple[Portion, ...] | None:
        """The parts of shards whose numbers of records are known; None if they are not."""
        return None

    def element_spec(self) -> Any:
        return record_spec()

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        opened = await self.opened(context)
        if state is not None:
            await opened.listing.check_fingerprint(state["share"])
        async with aclosing(read(self, state, context, opened)) as chunks:
            async for chunk in chunks:
                yield chunk.at(in_share(chunk.positions, opened.listing))


def in_share(inner: Positions, share: Listing, given: int | None = None) -> Derived:
    """Positions within a reader's share.

    They have the share's identity, and the number of records given before, if counted.
    """

    def place(inner: Positions, index: int) -> Position:
        source = {**inner.at(index)["source"], "share": share.fingerprint}
        return {"source": source if given is None else {**source, "given": given + index}}

    return Derived(inner, place)


def read(
    shards: Shards, state: Mapping[str, Any] | None, context: RunContext, opened: OpenSource
) -> AsyncGenerator[Chunk]:
    """The records of the listed shards, in chunks."""
    chunks = interleaved(shards, state, context, opened)
    return run_ahead(chunks) if context.offloaded else chunks


async def interleaved(
    shards: Shards, state: Mapping[str, Any] | None, context: RunContext, opened: OpenSource
) -> AsyncGenerator[Chunk]:
    """Pulls chunks from the interleave, and waits for more when nothing can be taken."""
    listing = opened.listing
    # Tasks end first: an account that is closed does not count any more.
    with closing(context.session.ledger.open("queues")) as account:
        source = fetching(shards, state, context, opened, account)
        interleave = source.interleave
        async with background() as tasks:
            while True:
                ahead = source.open_ahead.count
                coming = interleave.coming
                await listing.until(coming.next + shards.plan.cycle_length + ahead + 1)
                coming.known = len(listing.paths)
                if interleave.finished:
                    break
                pulled, error = pull(interleave)
                source.start(tasks, ahead, at_once=pulled is None)
                if pulled is not None:
                    source.waiters.wake()
                    yield pulled
                if error is not None:
                    raise error
                if pulled is None and not interleave.finished:
                    await source.waiters.arrival(interleave.awaited)
    if listing.error is not None:
        raise listing.error


def fetching(
    shards: Shards,
    state: Mapping[str, Any] | None,
    context: RunContext,
    opened: OpenSource,
    account: Account,
) -> Fetching:
    """What the tasks of a run's shards share; their queues count in the account."""
    listing = opened.listing
    ledger = context.session.ledger
    memory = ShardMemory(plan=shards.plan, budget=context.budget)
    interleave = ShardInterleave(
        shards.plan.within(context.deterministic),
        0,
        state,
        batch=context.batch,
        skip=context.skip - context.batch_offset,
        max_bytes=context.budget // 8,  # two or three pulls are under way
        paths=listing.labels,
        versions=compared_versions(context.session, listing, state),
        account=account,
    )
    return Fetching(
        storages=opened.storages,
        listing=listing,
        options=shards.options,
        batch=context.batch,
        memory=memory,
        ledger=ledger,
        interleave=interleave,
        open_ahead=OpenAhead(memory, opened.storages.connections),
        waiters=Waiters(ledger),
    )


def compared_versions(
    session: Session, listing: Listing, state: Mapping[str, Any] | None
) -> ComparedVersions:
    """The versions of a listing's shards, which a run notes from its first epoch on, and those of a
    state.
    """
    _, versions = session.kept.setdefault(id(listing), (listing, ShardVersions()))
    saved = SavedVersions.of(state, 0 if state is None else state["next"])
    versions.restore(saved)

    def about(shard: int) -> tuple[str, bool]:
        portion = listing.portion(shard)
        expected = portion.expected
        return portion.path, expected is not None and expected.version is not None

    return ComparedVersions(versions, saved, about)
