"""Opening an index for a run: how many records each shard holds, and the records by number."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from streamrec.errors import ManifestError
from streamrec.pipeline.engine.epochs import Memo
from streamrec.pipeline.engine.session import OpenSource
from streamrec.pipeline.sources.global_shuffle.blocks import Numbers
from streamrec.shards import Index, IndexReader, ReadOptions, RecordFetcher, location_of, open_index
from streamrec.tfrecord import Frames

__all__ = ["IndexedRecords", "index_of", "opened"]

WHOLE_BYTES = 32 << 20
"""Packed lengths that are no more than this are read at once, when a run begins: about 16 million records."""


@dataclass(frozen=True, slots=True)
class IndexedRecords:
    """The records of an index.

    Args:
        index: What it says.
        fetcher: Reads them.
    """

    index: Index
    fetcher: RecordFetcher

    def __len__(self) -> int:
        return len(self.index)

    @property
    def digest(self) -> str:
        """What tells this data set from others."""
        return self.index.digest

    @property
    def counts(self) -> Numbers:
        """How many records each shard holds, int64."""
        return np.diff(self.index.first_records)

    @property
    def sizes(self) -> Numbers:
        """The bytes of each shard, int64."""
        return np.array([shard.bytes for shard in self.index.shards], np.int64)

    @property
    def nbytes(self) -> int:
        """The bytes of all shards."""
        return self.index.nbytes

    @property
    def mean_bytes(self) -> float:
        """The bytes of a record on average, with its frame."""
        return self.nbytes / max(1, len(self))

    async def run(self, first: int, last: int) -> Frames:
        """Records first to last (exclusive)."""
        return await self.fetcher.fetch_run(first, last)

    async def some(self, numbers: Numbers) -> Frames:
        """Any records, in this order."""
        return await self.fetcher.fetch(numbers)


async def opened(source: OpenSource, url: str, options: ReadOptions, memo: Memo) -> IndexedRecords:
    """The records of an index, which must be that of the shards that are listed.

    Raises:
        ManifestError: It is damaged, or the index of other shards.
        NotFoundError: There is no such index.
        StorageError: The store failed, and retrying did not help.
    """
    index = await index_of(source, url, memo)
    reader = IndexReader(await source.storages.at(url), index)
    if int(index.block_places[-1]) <= WHOLE_BYTES:
        await reader.lengths(0, len(index))
    return IndexedRecords(index, RecordFetcher(source.storages, reader, verify=options.verify))


async def index_of(source: OpenSource, url: str, memo: Memo) -> Index:
    """An index, without the lengths of its records; raises as `opened` does."""
    index: Index | None = memo.get(Index)
    if index is None:
        index = await open_index(await source.storages.at(url), url)
        await check_listed(index, source)
        memo.keep(Index, index)
    return index


async def check_listed(index: Index, source: OpenSource) -> None:
    """Refuses an index of other shards than those that the data set names."""
    listing = source.listing
    await listing.until(sys.maxsize)
    if listing.error is not None:
        raise listing.error
    known = {location_of(shard.path): shard.path for shard in index.shards}
    named = {location_of(path): path for path in listing.paths}
    missing, more = sorted(named.keys() - known.keys()), sorted(known.keys() - named.keys())
    if not missing and not more:
        return
    first = (
        f"it does not know {named[missing[0]]}"
        if missing
        else f"it also knows {known[more[0]]}, which is not among them"
    )
    raise ManifestError(
        f"{index.path}: this index is not that of these {len(named):,} shards: {first}: pass the names that it has, or "
        f"write it anew: streamrec index SHARDS {index.path}"
    )
