"""Reading an index: its tables when it is opened, the lengths of records by ranges when they are asked for.

Rules:
- Opening takes a stat and one or two ranges of the end of the index, whatever the number of records.
- All that is read later is of the version that was opened; another one is an ObjectChangedError.
- Packed blocks of lengths are kept, up to `cache_bytes`; those that were used longest ago are dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from streamrec import kernels
from streamrec.display import display_name
from streamrec.errors import ManifestError
from streamrec.shards.index import Index, Numbers, damaged, read_end, read_foot
from streamrec.storage import Storage
from streamrec.storage.tasks import for_each
from streamrec.tfrecord import FOOTER_BYTES, HEADER_BYTES, unpack

__all__ = ["IndexReader", "Places", "open_index", "read_blocks"]

END_BYTES: Final = 256 << 10
"""What is read of the end of an index before its tables' size is known."""

GAP_BYTES: Final = 64 << 10
MOST_BYTES: Final = 4 << 20
PARALLEL: Final = 64
CACHE_BYTES: Final = 64 << 20


async def open_index(storage: Storage, path: str) -> Index:
    """Reads the tables of an index.

    Args:
        storage: Where it is stored.
        path: Its URL.

    Raises:
        NotFoundError: There is none.
        ManifestError: What is there is not an index, it is cut off or damaged, or of another version.
        StorageError: The store failed, and retrying did not help.
    """
    info = await storage.stat(path)
    if info.size is None:
        raise ManifestError(f"{path}: the store does not tell the size of the index: copy it to one that does")
    end = await storage.read_range(path, max(0, info.size - END_BYTES), info.size, info.version)
    foot = read_foot(path, end, info.size)
    if foot.end_bytes > len(end):
        end = await storage.read_range(path, info.size - foot.end_bytes, info.size, info.version)
    return read_end(path, foot, end, info.version)


async def read_blocks(storage: Storage, index: Index, first: int, last: int) -> list[bytes]:
    """The packed lengths of the blocks `first` to `last` (exclusive).

    Raises:
        ManifestError: The index is damaged.
        StorageError: The store failed, and retrying did not help.
    """
    places = index.block_places[first : last + 1].tolist()
    data = await storage.read_range(index.path, places[0], places[-1], index.version)
    blocks = []
    for start, end, crc in zip(places, places[1:], index.blocks["crc"][first:last].tolist(), strict=False):
        blocks.append(data[start - places[0] : end - places[0]])
        if kernels.crc32c(blocks[-1]) != crc:
            raise damaged(index.path, f"the CRC32C of the lengths at byte {start:,} is wrong")
    return blocks


class Places(NamedTuple):
    """Where records are, an int64 array [n] each.

    Attributes:
        shards: The number of the shard.
        offsets: Where the record's frame begins in it, in bytes.
        lengths: Bytes of its payload; its frame has 16 more.
    """

    shards: Numbers
    offsets: Numbers
    lengths: Numbers


class IndexReader:
    """The lengths and places of records, read when they are asked for.

    Any number of tasks of one event loop may share it.

    Args:
        storage: Where the index is.
        index: Its tables.
        cache_bytes: How many bytes of packed lengths are kept; a record takes about 2.
    """

    def __init__(self, storage: Storage, index: Index, cache_bytes: int = CACHE_BYTES) -> None:
        self.index = index
        self._storage = storage
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[int, bytes] = OrderedDict()
        self._cached_bytes = 0

    async def lengths(self, first: int, last: int) -> Numbers:
        """The payloads' lengths of records `first` to `last` (exclusive), in bytes: int64 [last - first].

        Raises:
            IndexError: There are no such records.
            ManifestError: The index is damaged.
            StorageError: The store failed, and retrying did not help.
        """
        self._check(first, last)
        if first == last:
            return np.empty(0, np.int64)
        _, blocks, within = self.index.block_of(np.array([first, last - 1]))
        lengths = await self._unpacked(np.arange(blocks[0], blocks[1] + 1))
        return lengths[within[0] : within[0] + last - first]

    async def places(self, records: Numbers) -> Places:
        """Where records are.

        Args:
            records: Their numbers, int64 [n], in any order.

        Raises:
            IndexError, ManifestError, StorageError: As `lengths`.
        """
        if not len(records):
            return Places(*(np.empty(0, np.int64),) * 3)
        self._check(int(records.min()), int(records.max()) + 1)
        shards, blocks, within = self.index.block_of(records)
        wanted, which = np.unique(blocks, return_inverse=True)
        lengths = await self._unpacked(wanted)
        counts = self.index.block_counts[wanted]
        firsts = np.cumsum(counts) - counts
        ends = np.cumsum(lengths + (HEADER_BYTES + FOOTER_BYTES))
        starts = ends - lengths - (HEADER_BYTES + FOOTER_BYTES)
        at = firsts[which] + within
        offsets = starts[at] - starts[firsts][which] + self.index.block_offsets[wanted][which]
        return Places(shards, offsets, lengths[at])

    def _check(self, first: int, last: int) -> None:
        if not 0 <= first <= last <= len(self.index):
            path = display_name(self.index.path)
            raise IndexError(f"records {first:,} to {last:,} of {len(self.index):,}: {path} has no such")

    async def _unpacked(self, blocks: Numbers) -> Numbers:
        """The lengths in these blocks, which are sorted, one after the other."""
        data = await self._packed(blocks.tolist())
        counts = self.index.block_counts[blocks]
        lengths = unpack(data, self.index.blocks[blocks], counts)
        sums = np.add.reduceat(lengths + (HEADER_BYTES + FOOTER_BYTES), np.cumsum(counts) - counts)
        if lengths.min() < 0 or (sums != self.index.block_bytes[blocks]).any():
            raise damaged(self.index.path, "the lengths of records do not fill their shards")
        return lengths

    async def _packed(self, blocks: Sequence[int]) -> list[bytes]:
        found = {block: data for block in blocks if (data := self._cached.get(block)) is not None}
        for block in found:
            self._cached.move_to_end(block)
        missing = np.array([block for block in blocks if block not in found], np.int64)

        async def read(bounds: tuple[int, int]) -> None:
            first, last = bounds
            for block, data in enumerate(await read_blocks(self._storage, self.index, first, last), first):
                found[block] = data
                self._keep(block, data)

        await for_each(read, self._ranges(missing), PARALLEL)
        return [found[block] for block in blocks]

    def _ranges(self, blocks: Numbers) -> list[tuple[int, int]]:
        """Which blocks are read together: first and last (exclusive)."""
        places = self.index.block_places
        found: list[tuple[int, int]] = []
        for block in blocks.tolist():
            if found:
                first, last = found[-1]
                if places[block] - places[last] <= GAP_BYTES and places[block + 1] - places[first] <= MOST_BYTES:
                    found[-1] = first, block + 1
                    continue
            found.append((block, block + 1))
        return found

    def _keep(self, block: int, data: bytes) -> None:
        if block not in self._cached:
            self._cached[block] = data
            self._cached_bytes += len(data)
        while self._cached_bytes > self._cache_bytes:
            self._cached_bytes -= len(self._cached.popitem(last=False)[1])
