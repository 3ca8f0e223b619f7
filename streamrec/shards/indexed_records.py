"""The records of an index, by number: their lengths, offsets and payloads.

Rules:
- Opening an index takes a stat and one or two ranges of its end, for any number of records. The
  lengths of records are read by ranges when they are needed. Their packed blocks are kept, up to
  `cache_bytes`; the least recently used ones are dropped first.
- One request reads records that are near each other; see `byte_runs`. Up to `parallel` requests run
  at the same time. Each record's length and CRC32C are compared with its payload. Only the
  requested records are kept in memory.
- All reads are of the version that was opened, or that the index has for a shard: another version
  or size is an ObjectChangedError.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import anyio
import numpy as np

from streamrec import kernels
from streamrec.display import display_name
from streamrec.errors import CorruptRecordError, ManifestError, NotFoundError, ObjectChangedError
from streamrec.shards.directories import stat_shard
from streamrec.shards.index import Index, Numbers, damage_error, read_end, read_foot
from streamrec.shards.manifest import FRAME_BYTES, ShardInfo
from streamrec.shards.range_runs import (
    OFFSET_BITS,
    ByteRun,
    byte_runs,
    first_difference,
    group_ranges,
)
from streamrec.storage import ByteStream, Storage, Storages, read_full
from streamrec.storage.tasks import for_each
from streamrec.tfrecord import (
    BUFFER_BITS,
    HEADER_BYTES,
    Frames,
    Scattered,
    are_long,
    as_spans,
    unpack,
)

END_BYTES: Final = 256 << 10
"""Bytes at the end of an index that are read before its tables' size is known."""

GAP_BYTES: Final = 64 << 10
MAX_BYTES: Final = 4 << 20
PARALLEL: Final = 64
CACHE_BYTES: Final = 64 << 20

UNPACKED_BLOCKS: Final = 256
"""Blocks of lengths that are unpacked at a time, into 2 MB. Not tuned."""


async def open_index(storage: Storage, path: str) -> Index:
    """Reads the tables of an index."""
    info = await stat_shard(storage, path)
    if info.size is None:
        raise ManifestError(
            f"{path}: the store does not give the size of the index: copy it to another store"
        )
    end = await storage.read_range(path, max(0, info.size - END_BYTES), info.size, info.version)
    foot = read_foot(path, end, info.size)
    if foot.end_bytes > len(end):
        end = await storage.read_range(path, info.size - foot.end_bytes, info.size, info.version)
    return read_end(path, foot, end, info.version)


async def read_blocks(storage: Storage, index: Index, first: int, last: int) -> list[bytes]:
    """Reads the packed lengths of the blocks `first` to `last` (exclusive).

    Checks their CRC32C.
    """
    offsets = index.block_places[first : last + 1].tolist()
    data = await storage.read_range(index.path, offsets[0], offsets[-1], index.version)
    blocks = []
    for start, end, crc in zip(
        offsets, offsets[1:], index.blocks["crc"][first:last].tolist(), strict=False
    ):
        blocks.append(data[start - offsets[0] : end - offsets[0]])
        if kernels.crc32c(blocks[-1]) != crc:
            raise damage_error(index.path, f"the CRC32C of the lengths at byte {start:,} is wrong")
    return blocks


class Places(NamedTuple):
    """The places of records, each an int64 array [n].

    They are shard numbers, byte offsets of frames, and bytes of payloads.
    """

    shards: Numbers
    offsets: Numbers
    lengths: Numbers


class IndexedRecords:
    """Reads records of an index by their numbers.

    Any number of tasks of one event loop may share it.

    Args:
        verify: Whether each record's length and CRC32C are checked.
        parallel: The largest number of requests of one call at the same time.
        cache_bytes: The largest number of bytes of packed lengths in memory; a record takes about
            2.
        note_version: Called with the number and the version of the shard of each answer; its errors
            are raised.
    """

    def __init__(
        self,
        storages: Storages,
        index: Index,
        *,
        verify: bool = True,
        parallel: int = PARALLEL,
        cache_bytes: int = CACHE_BYTES,
        note_version: Callable[[int, str | None], None] | None = None,
    ) -> None:
        self.index = index
        self._note_version = note_version
        self._storages = storages
        self._verify = verify
        self._parallel = parallel
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[int, bytes] = OrderedDict()
        self._cached_bytes = 0

    async def lengths(self, first: int, last: int) -> Numbers:
        """The payloads' lengths of records `first` to `last` (exclusive).

        In bytes: int64 [last - first].
        """
        self._check(first, last)
        if first == last:
            return np.empty(0, np.int64)
        _, blocks, in_block = self.index.block_of(np.array([first, last - 1]))
        lengths = await self._unpack(np.arange(blocks[0], blocks[1] + 1))
        return lengths[in_block[0] : in_block[0] + last - first]

    async def keep_lengths(self) -> None:
        """Reads all packed lengths, so that `places` finds them in memory.

        Only as many stay there as fit into `cache_bytes`.
        """
        await self._pack(np.flatnonzero(np.diff(self.index.block_places)).tolist())

    async def places(self, records: Numbers) -> Places:
        """The places of records with these numbers, int64 [n], in any order."""
        if not len(records):
            return Places(*(np.empty(0, np.int64),) * 3)
        self._check(int(records.min()), int(records.max()) + 1)
        shards, blocks, in_block = self.index.block_of(records)
        order = np.argsort(blocks, kind="stable")
        needed, firsts = np.unique(blocks[order], return_index=True)
        bounds = [*firsts[::UNPACKED_BLOCKS].tolist(), len(order)]
        offsets = np.empty(len(order), np.int64)
        lengths = np.empty(len(order), np.int64)

        async def find(step: int) -> None:
            rows = order[bounds[step] : bounds[step + 1]]
            group = needed[step * UNPACKED_BLOCKS : (step + 1) * UNPACKED_BLOCKS]
            which = np.searchsorted(group, blocks[rows])
            offsets[rows], lengths[rows] = await self._places_in(group, which, in_block[rows])

        await for_each(find, range(len(bounds) - 1), 4)
        return Places(shards, offsets, lengths)

    async def _places_in(
        self, blocks: Numbers, which: Numbers, in_block: Numbers
    ) -> tuple[Numbers, Numbers]:
        """The offsets and lengths of records.

        For each i it is record `in_block[i]` of block `blocks[which[i]]`.
        """
        lengths = await self._unpack(blocks)
        counts = self.index.block_counts[blocks]
        firsts = np.cumsum(counts) - counts
        ends = np.cumsum(lengths + FRAME_BYTES)
        starts = ends - lengths - FRAME_BYTES
        rows = firsts[which] + in_block
        offsets = self.index.block_offsets[blocks][which]
        return starts[rows] - starts[firsts][which] + offsets, lengths[rows]

    async def fetch(self, records: Numbers, most_bytes: int | None = None) -> Frames:
        """The records with these numbers, int64 [n], in this order.

        A repeated number gives its record again.

        About `most_bytes` may be held besides the records and one request; None: any number.

        Raises:
            IndexError: A number is out of range.
            ObjectChangedError: A shard was written since the index was.
            CorruptRecordError: A record is damaged.
        """
        wanted, order = np.unique(records, return_inverse=True)
        if not len(wanted):
            return Frames.of(())
        places = await self.places(wanted)
        runs = byte_runs(places.shards << OFFSET_BITS | places.offsets, places.lengths)
        parts = await self._read_all(runs, places, wanted, most_bytes)
        if len(runs) == 1:
            return parts[0].take(order)
        return gather(parts, order)

    async def fetch_run(self, first: int, last: int) -> Frames:
        """Records `first` to `last` (exclusive) of one shard, by one request. Errors as `fetch`."""
        self._check(first, last)
        # Two records need no tasks: with `places`, a block of a local shard costs 5 % more.
        shards, blocks, in_block = self.index.block_of(np.array([first, last - 1]))
        needed, which = np.unique(blocks, return_inverse=True)
        offsets, lengths = await self._places_in(needed, which, in_block)
        end = int(offsets[1] + lengths[1]) + FRAME_BYTES
        run = ByteRun(int(shards[0]), int(offsets[0]), end, 0, last - first)
        data = await self._read_run(run)
        spans, position, code, _ = kernels.scan_frames(data, 0, self._verify, len(data))
        frames = Frames(data, as_spans(spans))
        if code == kernels.OK and position == len(data) and len(frames) == last - first:
            return frames
        return await self.fetch(np.arange(first, last))  # its error names the record

    async def _read_all(
        self, runs: list[ByteRun], places: Places, wanted: Numbers, most_bytes: int | None
    ) -> list[Frames]:
        parts = [Frames.of(())] * len(runs)
        largest = max(run.end - run.start for run in runs)
        # `most_bytes` limits the requests, not their sizes: one run may be longer than that.
        parallel = self._parallel
        if most_bytes is not None:
            parallel = max(1, min(self._parallel, most_bytes // largest))

        async def read(number: int) -> None:
            run = runs[number]
            data = await self._read_run(run)
            # Offsets are those of headers in the shard; spans are those of payloads in the run.
            starts = places.offsets[run.first : run.last] + (HEADER_BYTES - run.start)
            ends = starts + places.lengths[run.first : run.last]
            found = Frames(data, np.stack([starts, ends], 1))
            if self._verify:
                self._check_run(run, found, wanted)
            parts[number] = found.trim()

        await for_each(read, range(len(runs)), parallel)
        return parts

    async def _read_run(self, run: ByteRun) -> memoryview:
        """The bytes of one run, of the version that the index knows."""
        shard = self.index.shards[run.shard]
        storage = await self._storages.at(shard.path)
        try:
            stream = await storage.stream(
                shard.path, run.start, run.end, shard.version, size=shard.bytes
            )
        except ObjectChangedError as error:
            raise self._changed_error(shard, run, error.reason) from error
        except NotFoundError as error:
            raise NotFoundError(
                f"{self.index.path} names this shard, and it is gone: put it back, or write the "
                f"index again: streamrec index SHARDS {self.index.path}",
                shard.path,
                run.start,
                run.end,
            ) from error
        try:
            if self._note_version is not None:
                self._note_version(run.shard, stream.info.version)
            return await self._read_open(stream, shard, run)
        finally:
            # A cancellation must not keep the connection from going back.
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    async def _read_open(self, stream: ByteStream, shard: ShardInfo, run: ByteRun) -> memoryview:
        """The bytes of a run, from its open stream."""
        try:
            if stream.info.size not in (None, shard.bytes):
                raise self._changed_error(
                    shard, run, f"it has {stream.info.size:,} bytes, not {shard.bytes:,}"
                )
            room = memoryview(kernels.allocate(run.end - run.start))
            filled = await read_full(stream, room)
            if filled < len(room):
                raise self._changed_error(shard, run, f"it ends at byte {run.start + filled:,}")
            return room.toreadonly()
        except ObjectChangedError as error:
            raise self._changed_error(shard, run, error.reason) from error

    def _changed_error(self, shard: ShardInfo, run: ByteRun, reason: str) -> ObjectChangedError:
        return ObjectChangedError(
            f"this shard is not the one that {self.index.path} was made from ({reason}): bring "
            f"the index up to date: streamrec index --update {self.index.path}",
            shard.path,
            run.start,
            run.end,
        )

    def _check_run(self, run: ByteRun, frames: Frames, wanted: Numbers) -> None:
        bad = first_difference(frames)
        if bad is None:
            return
        offset = run.start + int(frames.spans[bad, 0]) - HEADER_BYTES
        record = int(wanted[run.first + bad] - self.index.first_records[run.shard])
        raise CorruptRecordError(
            "this record's length or CRC32C is not that of its payload: it is damaged, or "
            f"{self.index.path} is the index of other shards: streamrec verify {self.index.path}",
            self.index.shards[run.shard].path,
            offset,
            record,
        )

    def _check(self, first: int, last: int) -> None:
        if not 0 <= first <= last <= len(self.index):
            path = display_name(self.index.path)
            raise IndexError(
                f"records {first:,} to {last:,} of {len(self.index):,}: {path} has no such"
            )

    async def _unpack(self, blocks: Numbers) -> Numbers:
        """The lengths of all records in these sorted blocks."""
        data = await self._pack(blocks.tolist())
        counts = self.index.block_counts[blocks]
        lengths = unpack(data, self.index.blocks[blocks], counts)
        sums = np.add.reduceat(lengths + FRAME_BYTES, np.cumsum(counts) - counts)
        if lengths.min() < 0 or (sums != self.index.block_bytes[blocks]).any():
            raise damage_error(
                self.index.path,
                "the lengths of the records do not add up to the sizes of their shards",
            )
        return lengths

    async def _pack(self, blocks: Sequence[int]) -> list[bytes]:
        """The packed lengths of these sorted blocks, from the cache or the store."""
        packed = {block: data for block in blocks if (data := self._cached.get(block)) is not None}
        for block in packed:
            self._cached.move_to_end(block)
        numbers = np.array(blocks, np.int64)
        offsets = self.index.block_places
        # A block of records of one length has no packed lengths: nothing is read for it.
        packed |= dict.fromkeys(numbers[offsets[numbers + 1] == offsets[numbers]].tolist(), b"")
        missing = np.array([block for block in blocks if block not in packed], np.int64)
        storage = await self._storages.at(self.index.path)

        async def read(group: tuple[int, int]) -> None:
            first = int(missing[group[0]])
            last = int(missing[group[1] - 1]) + 1
            found = await read_blocks(storage, self.index, first, last)
            for block, data in enumerate(found, first):
                packed[block] = data
                self._keep(block, data)

        groups = list(group_ranges(offsets[missing], offsets[missing + 1], GAP_BYTES, MAX_BYTES))
        await for_each(read, groups, PARALLEL)
        return [packed[block] for block in blocks]

    def _keep(self, block: int, data: bytes) -> None:
        if block not in self._cached:
            self._cached[block] = data
            self._cached_bytes += len(data)
        while self._cached_bytes > self._cache_bytes:
            self._cached_bytes -= len(self._cached.popitem(last=False)[1])


def gather(parts: list[Frames], order: Numbers) -> Frames:
    """Puts the records of several parts in order.

    Long ones stay in their buffers, short ones are copied.
    """
    rows = np.zeros((sum(map(len, parts)), 4), np.int64)
    rows[:, :2] = np.concatenate([part.spans for part in parts])
    rows[:, 2] = np.repeat(np.arange(len(parts)) << BUFFER_BITS, [len(part) for part in parts])
    records = Scattered([part.buffer for part in parts], rows[order])
    return records if are_long(records.nbytes, len(records)) else records.compact()
