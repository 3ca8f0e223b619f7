"""Distribute: divides the shards of a data set among ranks and loader workers; each reads its own
share.

Rules:
- The reader is looked up where and when the pipeline runs, since a Dataset may be pickled or forked
  before.
- Each reader computes its share from the names, the sizes and the manifest, which are the same for
  all. No reader ever waits for another.
- Positions hold the reader and a digest of its share. A changed share, or another reader's
  position, is refused.
- With `even`, all readers give the same number of records. A reader that reaches its end early
  (since damaged records were left out, or with "cycle") starts its share again.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from streamrec import bridge
from streamrec.display import display_name, display_repr, warn_once
from streamrec.errors import ManifestError, PositionMismatchError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.elements.positions import Position
from streamrec.pipeline.elements.specs import record_spec
from streamrec.pipeline.engine.description import Chain, Source, is_assigned, parts_of
from streamrec.pipeline.engine.ranks import (
    Rank,
    Reader,
    log_reader,
    rank_here,
    reader_here,
    warn_uneven,
    worker_here,
)
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.session import Memo, OpenSource, Session, session
from streamrec.pipeline.engine.stage import UNKNOWN_CARDINALITY
from streamrec.pipeline.sources.shards.source import Shards, in_share, read
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
    count_records,
    divide_portions,
    even_count,
    find_in_manifest,
    sizes_of,
)
from streamrec.shards.assignment import ShardSize

REMEDY: Final = (
    "In distributed training the other ranks wait for one that has fewer batches. Pass even='drop' "
    "(or 'pad') and "
    "manifest=; or write more shards than there are readers, or uncompressed ones, which can be "
    "divided (streamrec "
    "reshard)"
)


class AssignedSource(Source):
    """A source of which each reader (a rank, or one of its loader workers) reads its own part. A
    rank of None is looked up where the pipeline runs.
    """

    __slots__ = ()
    is_assigned: ClassVar[bool] = True
    rank: Rank | None
    even: Even | None
    memo: Memo

    async def count(self, opened: Session, rank: Rank | None) -> int:
        """How many elements this reader gives according to a manifest or an index, or
        UNKNOWN_CARDINALITY.
        """
        raise NotImplementedError

    def cardinality(self, rank: Rank | None) -> int:
        key = ("cardinality", self.rank or rank or rank_here(), worker_here())
        count: int | None = self.memo.get(key)  # kept, since `list(dataset)` asks each time
        if count is None:
            count = bridge.run(self._count, rank)
            self.memo[key] = count
        return count

    async def _count(self, rank: Rank | None) -> int:
        """The number of records that a rank gets, in a session that lasts for this question."""
        async with session() as opened:
            return await self.count(opened, rank)


@display_repr
@dataclass(frozen=True, slots=True)
class Distribute(AssignedSource):
    """Gives one reader's share of the records of shards; see `Dataset.distribute`."""

    shards: Shards
    rank: Rank | None = None
    even: Even | None = None
    manifest: str | None = None
    memo: Memo = field(default_factory=Memo, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_even(self.even)
        if self.even is not None and self.manifest is None and self.shards.known_portions is None:
            raise ValueError(
                f"even={self.even!r} needs the number of records of each shard: pass manifest=, "
                "the URL of a manifest "
                "that ShardWriter(manifest=...) or write_manifest(filenames, url) wrote"
            )

    def lines(self) -> Iterator[str]:
        yield from self.shards.lines()
        yield f"Distribute({'' if self.rank is None else f'{self.rank}, '}even={self.even!r})"

    @property
    def options(self) -> ReadOptions:
        return self.shards.options

    async def opened(self, context: RunContext) -> OpenSource:
        """The stores, and this reader's share."""
        return OpenSource((await self.shards.opened(context)).storages, await self._share(context))

    async def check(self, position: Position, context: RunContext) -> None:
        """Refuses a position of a chain with this source that was saved by another reader, or with
        other shards.
        """
        state = position.get("source")
        while state is not None and "share" not in state:
            state = state["inner"].get("source")
        (await self._share(context)).check(state)

    def element_spec(self) -> Any:
        return record_spec()

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        opened = await self.opened(context)
        share = await self._share(context)
        given = share.check(state)
        is_first = share.is_first_pass(given)
        while is_first or share.lacks(given):
            before = given
            async with (
                aclosing(read(self.shards, state, context, opened)) as chunks,
                aclosing(share.parts(chunks, given, is_first)) as parts,
            ):
                async for part in parts:
                    given += len(part.elements)
                    yield part
            if not share.lacks(given):  # its portions were read to their ends, for their errors
                share.warn_if_empty(given)
                return
            if state is None and given == before:
                raise ManifestError(
                    f"{self.manifest}: none of the records that it lists could be read of "
                    f"{share.paths}"
                )
            state = None
            context = replace(context, skip=0)
            is_first = False

    async def count(self, opened: Session, rank: Rank | None) -> int:
        reader = reader_here(self.rank or rank)
        known = self.shards.known_portions
        if known is not None and self.options.on_error == "raise":
            if self.even is not None:
                return even_count(count_records(known), reader.readers, self.even)
            return count_records(divide_portions(known, reader.readers, reader.number))
        if self.manifest is None:
            return UNKNOWN_CARDINALITY
        if self.even is None and (reader.readers > 1 or self.options.on_error != "raise"):
            return UNKNOWN_CARDINALITY
        total = sum(
            shard.records
            for shard in await find_records(self.manifest, await self.shards.listed(opened))
        )
        return total if self.even is None else even_count(total, reader.readers, self.even)

    async def _share(self, context: RunContext) -> AssignedShards:
        """This reader's share: assigned in its first run, and kept in the description."""
        reader = reader_here(self.rank or context.rank)
        share: AssignedShards | None = self.memo.get(reader)
        if share is None:
            share = await share_of(self, reader, await self.shards.opened(context))
            self.memo[reader] = share
            log_reader(reader, describe(self.shards.filenames))
        return share


class AssignedShards(Listing):
    """One reader's share: a complete listing of its portions, in order. It gives `total` records;
    None for all.
    """

    def __init__(
        self, reader: Reader, portions: Sequence[Portion], total: int | None = None
    ) -> None:
        super().__init__([portion.path for portion in portions], {}, complete=True)
        self.reader = reader
        self.portions = portions
        self.total = total
        self.labels = [  # in a part of a shard, records are counted from its beginning
            f"{portion.path} (the part from byte {portion.byte_range.start:,} on)"
            if portion.byte_range is not None and portion.byte_range.start
            else portion.path
            for portion in portions
        ]

    @property
    def planned(self) -> int:
        """How many records the portions hold according to a manifest, that is, before the share
        starts again.
        """
        ends = (
            portion.last or (portion.expected and portion.expected.records) or 0
            for portion in self.portions
        )
        return sum(end - portion.first for end, portion in zip(ends, self.portions, strict=True))

    def is_first_pass(self, given: int) -> bool:
        """Whether a share of which this many records were given was not started again."""
        return self.total is None or given <= self.planned

    def lacks(self, given: int) -> bool:
        """Whether the share must be started again after this many records, to give its total."""
        return self.total is not None and given < self.total

    async def parts(
        self, chunks: AsyncGenerator[Chunk], given: int, is_first: bool
    ) -> AsyncGenerator[Chunk]:
        """The chunks of one pass up to the end of the share; `given` records came before.

        The first pass is read to its end, so that the errors of all portions are raised.
        """
        async for chunk in chunks:
            part = self.cut(chunk, given)
            given += len(part.elements)
            if len(part.elements):
                yield part
            if given == self.total and not is_first:
                return

    def warn_if_empty(self, given: int) -> None:
        """Warns if a reader of several has shards, and no record begins in its part."""
        if self.total is None and not given and self.portions and self.reader.readers > 1:
            warn_once(
                f"reader {self.reader.number} of {self.reader.readers} (ranks times loader "
                f"workers) got no records: none begins in its part of {describe(self.paths)}. "
                f"{REMEDY}"
            )

    def portion(self, number: int) -> Portion:
        return self.portions[number]

    @property
    def fingerprint(self) -> list[Any]:
        """What states hold of the share."""
        listed = [
            (part.expected.size, part.expected.version)
            for part in self.portions
            if part.expected is not None
        ]
        text = repr((self.portions, self.total, *listed))
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return [self.reader.number, self.reader.readers, digest]

    def check(self, state: Mapping[str, Any] | None) -> int:
        """How many records were given before a state; an error if another reader saved it, or with
        other shards.
        """
        if state is None:
            return 0
        number, readers, _ = state["share"]
        if (number, readers) != (self.reader.number, self.reader.readers):
            raise PositionMismatchError(
                f"this state was saved by reader {number} of {readers}, and this is reader "
                f"{self.reader.number} of "
                f"{self.reader.readers} (readers are ranks times loader workers): resume with the "
                "same number of "
                "readers, each with its own state"
            )
        if state["share"] != self.fingerprint:
            raise PositionMismatchError(
                "names, sizes or numbers of records of the shards, and so their assignment, have "
                "changed since this "
                "state was saved: resume with the same shards, or start over without the state"
            )
        return int(state["given"])

    def cut(self, chunk: Chunk, given: int) -> Chunk:
        """A chunk up to the end of the share, whose positions have the number of records given
        before.
        """
        positions = in_share(chunk.positions, self, given)
        count = len(chunk.elements)
        left = count if self.total is None else min(count, self.total - given)
        elements = chunk.elements if left == count else window(chunk.elements, 0, left)
        return Chunk(elements, positions, chunk.nbytes)


@dataclass(frozen=True, slots=True)
class Portions(Source):
    """Gives the records of portions, in order. The names of `shards` are those of the portions."""

    shards: Shards
    portions: tuple[Portion, ...]

    def lines(self) -> Iterator[str]:
        yield from self.shards.lines()
        yield f"Portions({self.portions!r})"

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        storages = (await self.shards.opened(context)).storages
        opened = OpenSource(storages, AssignedShards(Reader(0, 1), self.portions))
        async with aclosing(read(self.shards, state, context, opened)) as chunks:
            async for chunk in chunks:
                yield chunk


def reader_of(chain: Chain, context: RunContext) -> Reader:
    """The reader whose part a chain gives here: 0 of 1 if all readers get the same."""
    assigned = [part for part in parts_of(chain) if isinstance(part, AssignedSource)]
    if not assigned:
        return Reader(0, 1)
    given = (part.rank for part in assigned if part.rank is not None)
    return reader_here(next(given, context.rank))


def readers_lines(chain: Chain, reader: Reader) -> tuple[str, ...]:
    """A chain's lines, with the reader if its sources are assigned, so that readers' lines
    differ.
    """
    return (*chain.lines(), *([str(reader)] if is_assigned(chain) else []))


async def complete(opened: OpenSource) -> Listing:
    """Waits for the complete listing of a source."""
    await opened.listing.until(sys.maxsize)
    if opened.listing.error is not None:
        raise opened.listing.error
    return opened.listing


async def find_records(manifest: str, opened: OpenSource) -> list[ShardInfo]:
    """A manifest's entries for the shards of a source; a ManifestError if a shard is missing or
    differs.
    """
    listing = await complete(opened)
    return await find_in_manifest(opened.storages, manifest, listing.paths, listing.known)


async def share_of(how: Distribute, reader: Reader, opened: OpenSource) -> AssignedShards:
    """Computes a reader's share."""
    # Portions whose numbers of records are known are divided without a request; the records of a
    # manifest exactly, with even; and all other shards by their bytes.
    known = how.shards.known_portions
    if known is not None:
        portions = divide_portions(known, reader.readers, reader.number, how.even)
        total = count_records(known)
        return AssignedShards(reader, tuple(portions), share_total(how, reader, total))
    shards = None if how.manifest is None else await find_records(how.manifest, opened)
    if how.even is not None and shards is not None:
        portions = assign_records(shards, reader.readers, reader.number, how.even, how.manifest)
        total = sum(shard.records for shard in shards)
        return AssignedShards(reader, tuple(portions), share_total(how, reader, total))
    listing = await complete(opened)
    if shards is None:
        sizes = await sizes_of(opened.storages, listing.paths, listing.known, reader.readers)
    else:
        expected = [
            Expected(
                size=shard.bytes,
                version=shard.version,
                records=shard.records,
                manifest=how.manifest,
            )
            for shard in shards
        ]
        sizes = [
            ShardSize(shard.path, shard.bytes, True, each)
            for shard, each in zip(shards, expected, strict=True)
        ]
    plan = await assign_shards(
        opened.storages, sizes, reader.readers, how.shards.options.compression_type
    )
    size_of = {shard.path: shard.size for shard in sizes}
    loads = [
        sum(load_of(portion, size_of[portion.path]) for portion in portions) for portions in plan
    ]
    warn_uneven(reader, loads, describe(listing.paths), REMEDY)
    return AssignedShards(reader, tuple(plan[reader.number]))


def share_total(how: Distribute, reader: Reader, total: int) -> int | None:
    """How many of `total` records each reader gives; None if their numbers may differ."""
    if how.even is None:
        return None
    count = even_count(total, reader.readers, how.even)
    if total and not count:
        warn_once(
            f"even={how.even!r} gives no records to {reader.readers} readers (ranks times loader "
            f"workers), since {describe(how.shards.filenames)} hold only {total:,}: pass "
            "even='pad', or use fewer readers"
        )
    return count


def load_of(portion: Portion, size: int) -> int:
    """The bytes of a portion of a shard of `size` bytes."""
    cut = portion.byte_range
    return size if cut is None else (size if cut.end is None else cut.end) - cut.start


def describe(paths: Sequence[str]) -> str:
    """The name of the first shard, and how many more there are."""
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{display_name(paths[0])}{more}" if paths else "no shard"
