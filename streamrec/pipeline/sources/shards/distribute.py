"""Distribute: the shards of a data set divided among ranks and loader workers, each of which reads its own share.

Rules:
- The reader is looked up where and when the pipeline runs: a Dataset may be pickled or forked before.
- Each reader works its share out for itself, from what all see alike: the names, the sizes, the manifest. No reader
  waits for another, at the beginning or at the end.
- Positions hold the reader and a digest of its share: one that changed, or another reader's, is refused.
- With `even`, every reader gives the same number of records, whatever happens: one that comes to its end before
  (because damaged records were left out, or with "cycle") begins them again.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from streamrec import bridge
from streamrec.display import display_name, display_repr
from streamrec.errors import ManifestError, PositionMismatchError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.elements.positions import Position
from streamrec.pipeline.elements.specs import record_spec
from streamrec.pipeline.engine.description import Chain, Source, is_assigned
from streamrec.pipeline.engine.epochs import Memo
from streamrec.pipeline.engine.ranks import (
    Rank,
    Reader,
    rank_here,
    reader_here,
    warn_once,
    warn_uneven,
    worker_here,
)
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.session import OpenSource, Session, session
from streamrec.pipeline.engine.stage import UNKNOWN_CARDINALITY
from streamrec.pipeline.sources.shards.source import Shards, SharePositions, read
from streamrec.shards import (
    Even,
    Expected,
    Listing,
    Portion,
    ReadOptions,
    ShardInfo,
    assign_records,
    assign_shards,
    check_even,
    even_count,
    find_in_manifest,
    sizes_of,
)
from streamrec.shards.assignment import ShardSize

__all__ = ["AssignedSource", "Distribute", "Portions", "complete", "readers_lines"]

REMEDY: Final = (
    "In distributed training the other ranks wait for one that has fewer batches. Pass even='drop' (or 'pad') and "
    "manifest=; or write more shards than there are readers, or uncompressed ones, which can be divided (streamrec "
    "reshard)"
)


class AssignedSource(Source):
    """A source of which each reader, a rank or one of its loader workers, reads a part of its own.

    Attributes:
        rank: Which rank reads; None to look where the pipeline runs.
        memo: What is kept from run to run.
    """

    __slots__ = ()
    is_assigned: ClassVar[bool] = True
    rank: Rank | None
    memo: Memo

    async def count(self, opened: Session, rank: Rank | None) -> int:
        """How many elements this reader gives, as a manifest or an index says; or UNKNOWN_CARDINALITY."""
        raise NotImplementedError

    def cardinality(self, rank: Rank | None) -> int:
        key = ("cardinality", self.rank or rank or rank_here(), worker_here())
        count: int | None = self.memo.get(key)  # `list(dataset)` asks each time
        if count is None:
            count = bridge.run(self._count, rank)
            self.memo.keep(key, count)
        return count

    async def _count(self, rank: Rank | None) -> int:
        async with session() as opened:
            return await self.count(opened, rank)


@display_repr
@dataclass(frozen=True, slots=True)
class Distribute(AssignedSource):
    """The records of shards that fall to one reader.

    Args:
        shards: What is divided.
        rank: Which rank reads; None to look where the pipeline runs.
        even: Whether all readers give as many records; see `Dataset.distribute`.
        manifest: URL of the manifest that says how many records there are.
    """

    shards: Shards
    rank: Rank | None = None
    even: Even | None = None
    manifest: str | None = None
    memo: Memo = field(default_factory=Memo, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_even(self.even)
        if self.even is not None and self.manifest is None:
            raise ValueError(
                f"even={self.even!r} needs to know how many records the shards hold: pass manifest=, the URL of the "
                "manifest that ShardWriter(manifest=...) wrote, or that write_manifest(filenames, url) writes"
            )

    def lines(self) -> Iterator[str]:
        yield from self.shards.lines()
        yield f"Distribute({'' if self.rank is None else f'{self.rank}, '}even={self.even!r})"

    @property
    def options(self) -> ReadOptions:
        return self.shards.options

    async def opened(self, within: RunContext) -> OpenSource:
        """The stores, and what is read of them: this reader's share."""
        return OpenSource((await self.shards.opened(within)).storages, await self._share(within))

    async def check(self, position: Position, within: RunContext) -> None:
        """Refuses a position, of a chain around this source, that was saved by another reader, or with other shards."""
        state = position.get("source")
        while state is not None and "share" not in state:
            state = state["inner"].get("source")
        (await self._share(within)).check(state)

    def element_spec(self) -> Any:
        return record_spec()

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        opened, share = await self.opened(within), await self._share(within)
        given = share.check(state)
        again = given > share.planned
        while share.total is None or not again or given < share.total:
            before = given
            async with aclosing(read(self.shards, state, within, opened)) as chunks:
                async for chunk in chunks:
                    own = share.cut(chunk, given)
                    given += len(own.elements)
                    if len(own.elements):
                        yield own
                    if given == share.total and again:
                        return
            if share.total is None:
                if not given and share.portions and share.reader.readers > 1:
                    warn_once(
                        f"reader {share.reader.number} of {share.reader.readers} (ranks times loader workers) got no "
                        f"record: none begins in its part of {describe(share.paths)}. {REMEDY}"
                    )
                return
            if given == share.total:  # all portions were read to their ends, so their errors were raised
                return
            if state is None and given == before:
                raise ManifestError(f"{self.manifest}: no record is left of those that it says are in {share.paths}")
            state, within, again = None, replace(within, skip=0), True

    async def count(self, opened: Session, rank: Rank | None) -> int:
        reader = reader_here(self.rank or rank)
        if self.manifest is None:
            return UNKNOWN_CARDINALITY
        if self.even is None and (reader.readers > 1 or self.options.on_error != "raise"):
            return UNKNOWN_CARDINALITY
        total = sum(shard.records for shard in await find_records(self.manifest, await self.shards.listed(opened)))
        return total if self.even is None else even_count(total, reader.readers, self.even)

    async def _share(self, within: RunContext) -> AssignedShards:
        reader = reader_here(self.rank or within.rank)
        share: AssignedShards | None = self.memo.get(reader)
        if share is None:
            share = await share_of(self, reader, await self.shards.opened(within))
            self.memo.keep(reader, share)
        return share


class AssignedShards(Listing):
    """What one reader reads: a listing that is complete.

    Args:
        reader: Whose it is.
        portions: What is read, in order.
        total: How many records it gives; None for all that there are.
    """

    def __init__(self, reader: Reader, portions: Sequence[Portion], total: int | None = None) -> None:
        self.reader = reader
        self.portions = portions
        self.total = total
        self.paths = [portion.path for portion in portions]
        self.labels = [  # in a piece of a shard, records are counted from its beginning
            f"{portion.path} (the part from byte {portion.piece.start:,} on)"
            if portion.piece is not None and portion.piece.start
            else portion.path
            for portion in portions
        ]
        self.known, self.complete, self.error = {}, True, None

    @property
    def planned(self) -> int:
        """How many records all portions hold, as far as a manifest says it: what is given before they begin again."""
        ends = (portion.last or (portion.expected and portion.expected.records) or 0 for portion in self.portions)
        return sum(end - portion.first for end, portion in zip(ends, self.portions, strict=True))

    def portion(self, number: int) -> Portion:
        return self.portions[number]

    @property
    def whose(self) -> list[Any]:
        """What states hold of it."""
        listed = [(part.expected.size, part.expected.version) for part in self.portions if part.expected is not None]
        told = repr((self.portions, self.total, *listed))
        digest = hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
        return [self.reader.number, self.reader.readers, digest]

    def check(self, state: Mapping[str, Any] | None) -> int:
        """How many records had been given where a state was saved.

        Raises:
            PositionMismatchError: It was saved by another reader, or when the shards were others.
        """
        if state is None:
            return 0
        number, readers, _ = state["share"]
        if (number, readers) != (self.reader.number, self.reader.readers):
            raise PositionMismatchError(
                f"this state was saved by reader {number} of {readers}, and this is reader {self.reader.number} of "
                f"{self.reader.readers} (readers are ranks times loader workers): resume each with its own state, and "
                "as many of them as there were"
            )
        if state["share"] != self.whose:
            raise PositionMismatchError(
                "names, sizes or numbers of records of the shards, and so their assignment, have changed since this "
                "state was saved: resume with the same shards, or start over without the state"
            )
        return int(state["given"])

    def cut(self, chunk: Chunk, given: int) -> Chunk:
        """A chunk, cut where the share ends, whose positions know how many records came before."""
        positions = SharePositions(chunk.positions, self, given)
        count = len(chunk.elements)
        left = count if self.total is None else min(count, self.total - given)
        elements = chunk.elements if left == count else window(chunk.elements, 0, left)
        return Chunk(elements, positions, chunk.nbytes)


@dataclass(frozen=True, slots=True)
class Portions(Source):
    """The records of these portions, in order.

    Args:
        shards: How they are read; its names are those of the portions.
        portions: What is read.
    """

    shards: Shards
    portions: tuple[Portion, ...]

    def lines(self) -> Iterator[str]:
        yield from self.shards.lines()
        yield f"Portions({self.portions!r})"

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        storages = (await self.shards.opened(within)).storages
        opened = OpenSource(storages, AssignedShards(Reader(0, 1), self.portions))
        async with aclosing(read(self.shards, state, within, opened)) as chunks:
            async for chunk in chunks:
                yield chunk


def readers_lines(chain: Chain, within: RunContext) -> tuple[str, ...]:
    """A chain's lines, and the reader where it is assigned: they differ where readers' elements do."""
    return (*chain.lines(), *([str(reader_here(within.rank))] if is_assigned(chain) else []))


async def complete(opened: OpenSource) -> Listing:
    """The listing of a source, when all of it is known.

    Raises:
        StorageError: The shards cannot be listed.
    """
    await opened.listing.until(sys.maxsize)
    if opened.listing.error is not None:
        raise opened.listing.error
    return opened.listing


async def find_records(manifest: str, opened: OpenSource) -> list[ShardInfo]:
    """What a manifest says of the shards of a source.

    Raises:
        StorageError: The shards cannot be listed.
        ManifestError: The manifest does not know a shard, or not as it is.
    """
    listing = await complete(opened)
    return await find_in_manifest(opened.storages, manifest, listing.paths, listing.known)


async def share_of(how: Distribute, reader: Reader, opened: OpenSource) -> AssignedShards:
    """Works out what a reader reads.

    Raises:
        StorageError: The shards cannot be listed, or their sizes not be had.
        ManifestError: The manifest does not know a shard, or not as it is.
    """
    shards = None if how.manifest is None else await find_records(how.manifest, opened)
    if how.even is not None and shards is not None:
        portions = assign_records(shards, reader.readers, reader.number, how.even, how.manifest)
        total = sum(shard.records for shard in shards)
        count = even_count(total, reader.readers, how.even)
        if total and not count:
            warn_once(
                f"even={how.even!r} of {total:,} records leaves none for {reader.readers} readers (ranks times loader "
                f"workers): {describe(opened.listing.paths)} hold fewer records than there are readers; pass "
                "even='pad', or use fewer readers"
            )
        return AssignedShards(reader, tuple(portions), count)
    listing = await complete(opened)
    if shards is None:
        sizes = await sizes_of(opened.storages, listing.paths, listing.known, reader.readers)
    else:
        said = [Expected(shard.bytes, shard.version, shard.records, how.manifest) for shard in shards]
        sizes = [ShardSize(shard.path, shard.bytes, True, each) for shard, each in zip(shards, said, strict=True)]
    plan = await assign_shards(opened.storages, sizes, reader.readers, how.shards.options.compression_type)
    size_of = {shard.path: shard.size for shard in sizes}
    loads = [sum(load_of(portion, size_of[portion.path]) for portion in own) for own in plan]
    warn_uneven(reader, loads, describe(listing.paths), REMEDY)
    return AssignedShards(reader, tuple(plan[reader.number]))


def load_of(portion: Portion, size: int) -> int:
    piece = portion.piece
    return size if piece is None else (size if piece.end is None else piece.end) - piece.start


def describe(paths: Sequence[str]) -> str:
    """Shards, by number and the name of the first."""
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{display_name(paths[0])}{more}" if paths else "no shard"
