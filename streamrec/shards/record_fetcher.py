"""Any records of an indexed data set, by ranged reads.

Rules:
- Records near each other are read by one request; see `byte_runs`. Up to `parallel` requests are under way.
- Each record's length and CRC32C are compared with its payload.
- A shard that has another version or another size than the index says is refused.
"""

from __future__ import annotations

from typing import Final

import anyio
import numpy as np

from streamrec import kernels
from streamrec.errors import CorruptRecordError, NotFoundError, ObjectChangedError
from streamrec.shards.index import Numbers
from streamrec.shards.index_reader import IndexReader, Places
from streamrec.shards.manifest import ShardInfo
from streamrec.shards.range_runs import OFFSET_BITS, ByteRun, byte_runs, first_difference
from streamrec.storage import Storages
from streamrec.storage.tasks import for_each
from streamrec.tfrecord import BUFFER_BITS, FOOTER_BYTES, HEADER_BYTES, Frames, Scattered, are_long, as_spans

__all__ = ["RecordFetcher"]

PARALLEL: Final = 64


class RecordFetcher:
    """Fetches records by their numbers. Any number of tasks of one event loop may share it.

    Args:
        storages: Where the shards are.
        reader: The reader of their index.
        verify: Whether each record's length and CRC32C are checked.
        parallel: How many requests one call has under way at most.

    Attributes:
        reader: The reader of the index.
    """

    def __init__(
        self, storages: Storages, reader: IndexReader, *, verify: bool = True, parallel: int = PARALLEL
    ) -> None:
        self._storages = storages
        self.reader = reader
        self._index = reader.index
        self._verify = verify
        self._parallel = parallel

    async def fetch(self, records: Numbers) -> Frames:
        """The records with these numbers, in this order; one that is asked for twice comes twice.

        Raises:
            IndexError: There is no such record.
            ObjectChangedError: A shard was written since the index was.
            CorruptRecordError: A record is damaged.
            StorageError: The store failed, and retrying did not help.
        """
        wanted, order = np.unique(records, return_inverse=True)
        if not len(wanted):
            return Frames.of(())
        places = await self.reader.places(wanted)
        runs = byte_runs(places.shards << OFFSET_BITS | places.offsets, places.lengths)
        buffers = await self._read_all(runs, places, wanted)
        if len(runs) == 1:
            return Frames(buffers[0], spans_in(runs[0], places)[order]).trimmed()
        return gathered(runs, buffers, places, order)

    async def fetch_run(self, first: int, last: int) -> Frames:
        """Records first to last (exclusive), which are in one shard, by one request.

        Raises:
            IndexError, ObjectChangedError, CorruptRecordError, StorageError: As `fetch`.
        """
        places = await self.reader.places(np.array([first, last - 1]))
        end = int(places.offsets[1] + places.lengths[1]) + HEADER_BYTES + FOOTER_BYTES
        run = ByteRun(int(places.shards[0]), int(places.offsets[0]), end, 0, last - first)
        data = await self._read(run)
        spans, position, code, _ = kernels.scan_frames(data, 0, self._verify, len(data))
        frames = Frames(data, as_spans(spans))
        if code == kernels.OK and position == len(data) and len(frames) == last - first:
            return frames
        return await self.fetch(np.arange(first, last))  # which says what is wrong, and with which record

    async def _read_all(self, runs: list[ByteRun], places: Places, wanted: Numbers) -> list[memoryview]:
        buffers = [memoryview(b"")] * len(runs)

        async def read(number: int) -> None:
            run = runs[number]
            buffers[number] = await self._read(run)
            if self._verify:
                self._check(run, Frames(buffers[number], spans_in(run, places)), wanted)

        await for_each(read, range(len(runs)), self._parallel)
        return buffers

    async def _read(self, run: ByteRun) -> memoryview:
        """The bytes of one run, of the version that the index knows."""
        shard = self._index.shards[run.shard]
        storage = await self._storages.at(shard.path)
        try:
            stream = await storage.stream(shard.path, run.start, run.end, shard.version)
        except ObjectChangedError as error:
            raise self._changed(shard, run, error.reason) from error
        except NotFoundError as error:
            raise NotFoundError(
                f"{self._index.path} names this shard, and it is gone: put it back, or index what there is: "
                f"streamrec index SHARDS {self._index.path}",
                shard.path,
                run.start,
                run.end,
            ) from error
        try:
            if stream.info.size not in (None, shard.bytes):
                raise self._changed(shard, run, f"it has {stream.info.size:,} bytes, not {shard.bytes:,}")
            room, filled = memoryview(kernels.allocate(run.end - run.start)), 0
            while filled < len(room):
                count = await stream.readinto(room[filled:])
                if not count:
                    raise self._changed(shard, run, f"it ends at byte {run.start + filled:,}")
                filled += count
            return room.toreadonly()
        except ObjectChangedError as error:
            raise self._changed(shard, run, error.reason) from error
        finally:
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    def _changed(self, shard: ShardInfo, run: ByteRun, how: str) -> ObjectChangedError:
        """The error for a shard that is not as the index knows it."""
        return ObjectChangedError(
            f"this shard is not the one that {self._index.path} was made from ({how}): bring the index up to date: "
            f"streamrec index --update {self._index.path}",
            shard.path,
            run.start,
            run.end,
        )

    def _check(self, run: ByteRun, frames: Frames, wanted: Numbers) -> None:
        bad = first_difference(frames)
        if bad is None:
            return
        offset = run.start + int(frames.spans[bad, 0]) - HEADER_BYTES
        record = int(wanted[run.first + bad] - self._index.first_records[run.shard])
        raise CorruptRecordError(
            f"this record's length or CRC32C is not that of its payload: it is damaged, or {self._index.path} is the "
            f"index of other shards: streamrec verify {self._index.path}",
            self._index.shards[run.shard].path,
            offset,
            record,
        )


def gathered(runs: list[ByteRun], buffers: list[memoryview], places: Places, order: Numbers) -> Frames:
    """The records of several runs: long ones stay where they are, short ones are copied."""
    counts = [run.last - run.first for run in runs]
    rows = np.zeros((len(places.offsets), 4), np.int64)
    rows[:, 0] = places.offsets + HEADER_BYTES - np.repeat([run.start for run in runs], counts)
    rows[:, 1] = rows[:, 0] + places.lengths
    rows[:, 2] = np.repeat(np.arange(len(runs)) << BUFFER_BITS, counts)
    records = Scattered(buffers, rows[order])
    return records if are_long([records]) else records.compact()


def spans_in(run: ByteRun, places: Places) -> Numbers:
    """Where the payloads of a run's records are in its bytes."""
    starts = places.offsets[run.first : run.last] + (HEADER_BYTES - run.start)
    return np.stack([starts, starts + places.lengths[run.first : run.last]], 1)
