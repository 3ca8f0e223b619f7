"""Byte ranges of an uncompressed shard: n readers deliver each record once.

They need no index.

A byte range has the records whose headers begin in it. The reader of the previous one reads to its
last record's end; this one skips the rest of that record and begins at the first header. A payload
may itself hold whole records (a TFRecord file that is stored as a record); these stop at the end of
the payload, or before. So a start is certain when whole records have followed each other for
SETTLE_BYTES, or to the end of the shard (`find_start`).

If the run of records stops earlier, the reader reads the bytes before the start, back to where the
longest possible record could begin. If a record begins there that spans the whole run, the run was
in its payload, and reading begins after that record. Otherwise the run belongs to the shard, and
the bytes that stop it are reported as damage.

So every record of an undamaged shard comes once, for all cuts and payloads, with one exception: a
record that holds a TFRecord stream whose records follow each other for more than SETTLE_BYTES after
a cut. Its inner records come as records of the shard, up to their end, which is reported as damage.
(Bytes that were written to deceive can do more: a CRC is not a signature.)

A reader fetches bytes before the start in that case only. After the end it fetches the bytes of the
last record, and at most SLACK_BYTES more, which usually saves a request.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from streamrec import kernels
from streamrec.shards.opened_check import check_opened
from streamrec.shards.options import Expected, ShardPlace, ShardRange, size_in
from streamrec.storage import ByteStream, ObjectInfo, Storage
from streamrec.tfrecord import FOOTER_BYTES, HEADER_BYTES, is_record_header

if TYPE_CHECKING:
    from typing_extensions import Buffer

SETTLE_BYTES = 1 << 20
"""How far records must follow each other before the first one counts as a record of the shard."""

SLACK_BYTES = 64 << 10
FIRST_BYTES = 64 << 10
LONG_BYTES = 16 << 20
"""The reader does not wait for a longer record: it counts if another one begins at its end."""


class RangeStream:
    """The bytes of a byte range.

    They are an open one up to `limit`, and further ones to the end of its last record.
    """

    def __init__(self, storage: Storage, path: str, stream: ByteStream, limit: int | None) -> None:
        self._storage = storage
        self._path = path
        self._stream = stream
        self._limit = limit
        self.tally = stream.tally

    @property
    def info(self) -> ObjectInfo:
        return self._stream.info

    def room(self, size: int, missing: int) -> int:
        """The buffer size to use instead of `size` when `missing` bytes are needed.

        It is no more than will be read.
        """
        if self._limit is None:
            return size
        if self._stream.position >= self._limit:
            self._limit = self._stream.position + max(missing, 1)
        return min(size, self._limit - self._stream.position)

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes up to the limit; 0 there, and at the end of the shard."""
        count = await self._stream.readinto(buffer)
        position = self._stream.position
        size = self.info.size
        at_end = size is not None and position >= size
        if count or self._limit is None or position >= self._limit or at_end:
            return count
        await self.seek(position)
        return await self._stream.readinto(buffer)

    async def seek(self, position: int) -> None:
        """Continues from another byte of the same version."""
        if self._limit is not None:
            self._limit = max(self._limit, position + SLACK_BYTES)
        info = self.info
        await self._stream.aclose()
        self._stream = await self._storage.stream(
            self._path, position, self._limit, info.version, self.tally, size=info.size
        )

    async def read_range(self, start: int, end: int) -> bytes:
        """Reads any bytes of the same version of the shard."""
        return await self._storage.read_range(self._path, start, end, self.info.version)

    async def aclose(self) -> None:
        """Closes the open stream: the first one, or that of the last `seek`."""
        await self._stream.aclose()


OpenRange = tuple[RangeStream, int, bytes | bytearray | None]
"""An open byte range.

It is its stream, the offset of its first record's header, and the bytes from there that were read
already (None if no record begins in it).
"""


async def begin_range(
    storage: Storage,
    path: str,
    byte_range: ShardRange,
    max_record_bytes: int,
    place: ShardPlace,
    expected: Expected | None = None,
) -> OpenRange:
    """Opens a byte range at its first record; or at a later one, if its place is given."""
    start = place.offset or byte_range.start
    limit = None if byte_range.end is None else max(byte_range.end, start) + SLACK_BYTES
    opened = await storage.stream(path, start, limit, place.version, size=size_in(expected))
    stream = RangeStream(storage, path, opened, limit)
    try:
        if expected is not None:
            await check_opened(storage, expected, stream.info)
        if byte_range.end is not None and start >= byte_range.end:
            return stream, start, None
        if start == 0 or place.offset:
            return stream, start, b""
        return await _StartSearch(stream, byte_range, max_record_bytes).find()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await stream.aclose()
        raise


class _StartSearch:
    """The search for the first record of a byte range, in bytes that are read as it needs them."""

    def __init__(self, stream: RangeStream, byte_range: ShardRange, max_record_bytes: int) -> None:
        self._byte_range = byte_range
        self._max_record_bytes = min(max_record_bytes, stream.info.size or max_record_bytes)
        self._stream = stream
        self._position = byte_range.start
        self._data = bytearray()

    async def find(self) -> OpenRange:
        """Reads on until it is known where the first record of the range begins."""
        # `reach` is where the run of records stops. A run that stops early may be within the
        # payload of a record that begins before the range, or damaged bytes may stop it: the bytes
        # before the range tell which.
        wants = FIRST_BYTES
        while True:
            final = await self._read(wants)
            start = find_start(self._data, self._max_record_bytes, final)
            reach = None if start.breaks is None else self._position + start.breaks
            self._drop(start.at)
            limit = self._byte_range.end
            ended = final and not self._data
            if ended or (limit is not None and self._position >= limit):
                return self._stream, self._position, None
            if 0 < start.wants <= LONG_BYTES:
                wants = max(start.wants, FIRST_BYTES)
                continue
            settled = reach is None or (
                start.wants and await self._leads_on(self._position + start.wants)
            )
            end = None if settled or reach is None else await self._end_of_record_around(reach)
            if end is None:
                return self._stream, self._position, self._data
            await self._go_to(end)
            wants = FIRST_BYTES

    async def _read(self, size: int) -> bool:
        """Reads until the buffer has `size` bytes; returns True at the end of the shard."""
        while (missing := size - len(self._data)) > 0:
            room = self._stream.room(min(missing, max(len(self._data), FIRST_BYTES)), missing)
            block = memoryview(
                bytearray(room)
            )  # the thread that fills it may hold it for a moment longer
            count = await self._stream.readinto(block)
            self._data += block[:count]
            if not count:
                return True
        return False

    def _drop(self, count: int) -> None:
        """Forgets the first bytes of those that were read."""
        del self._data[:count]
        self._position += count

    async def _go_to(self, position: int) -> None:
        """Drops what lies before a position, and skips what was not read."""
        if position > self._position + len(self._data):
            await self._stream.seek(position)
            self._data.clear()
            self._position = position
        self._drop(position - self._position)

    async def _end_of_record_around(self, reach: int) -> int | None:
        """The end of a record that begins before the byte range and holds all bytes up to `reach`.

        None without one.

        Another record begins at its end. A record with a good payload is preferred to a nearer one
        without: a payload may also hold a part of a TFRecord file, and the last length in such a
        part may point anywhere.
        """
        last = self._byte_range.start
        step = 1 << 20
        first = max(0, last - self._max_record_bytes - HEADER_BYTES)
        second_best: int | None = None
        while last > first:
            here = max(first, last - step)
            data = await self._stream.read_range(here, last + HEADER_BYTES - 1)
            for begin, end in spanning(data, reach - here, self._max_record_bytes):
                if await self._leads_on(here + end):
                    if is_record(await self._stream.read_range(here + begin, here + end)):
                        return here + end
                    second_best = second_best or here + end
            last = here
            step = min(2 * step, 16 << 20)
        return second_best

    async def _leads_on(self, end: int) -> bool:
        """Whether another record begins at `end`, or the shard ends there."""
        if end == self._stream.info.size:
            return True
        return is_record_header(await self._stream.read_range(end, end + HEADER_BYTES))


@dataclass(frozen=True, slots=True)
class Start:
    """A possible start of the records, as far as the bytes so far show.

    Offsets count from the first of these bytes.

    Args:
        at: The offset of the first header, or the first offset that may still be one.
        wants: The number of bytes from there on that the next decision needs; 0 for none.
        breaks: The offset where the run of records from `at` on stops too early; with `wants`, the
            offset of the record that is not complete, and may never be; None if the run does not
            stop.
    """

    at: int
    wants: int = 0
    breaks: int | None = None


def find_start(data: Buffer, max_record_bytes: int, final: bool) -> Start:
    """Looks for the first header from the start of a byte range on.

    `final` data reaches the shard's end.

    If the result has `wants`, more must be read. Else `at` is the first header, or the end if there
    is none.
    """
    size = memoryview(data).nbytes
    at, wants = kernels.find_header(data, 0, False, max_record_bytes)
    if wants == HEADER_BYTES:
        return Start(size) if final else Start(at, wants)
    _, end, code, wants = kernels.scan_frames(data, at, True, max_record_bytes)
    if code != kernels.OK or (final and end < size):
        return Start(at, breaks=end)
    if final or end - at >= SETTLE_BYTES:
        return Start(at)
    return Start(at, max(SETTLE_BYTES, end - at + wants), end)


def is_record(data: Buffer) -> bool:
    """Whether the bytes are one whole record with good CRC32Cs, and nothing else."""
    spans, end, _, _ = kernels.scan_frames(data, 0, True, sys.maxsize)
    return memoryview(spans).nbytes == 16 and end == memoryview(data).nbytes


def spanning(data: Buffer, reach: int, max_record_bytes: int) -> list[tuple[int, int]]:
    """Start and end of the records that begin in `data` and may hold all bytes up to `reach`.

    The nearest first.

    `data` begins before a possible start of the records; `reach` is an offset in it, or after it.
    """
    records = []
    before = memoryview(data).cast("B")[: reach + FOOTER_BYTES - 1]
    at, wants = kernels.find_header(before, 0, False, max_record_bytes)
    while wants != HEADER_BYTES:
        _, at, code, wants = kernels.scan_frames(before, at, True, max_record_bytes)
        if code == kernels.OK and wants > HEADER_BYTES and at + wants >= reach + FOOTER_BYTES:
            records.append((at, at + wants))
        if at + 1 >= len(before):
            break
        at, wants = kernels.find_header(before, at + 1, False, max_record_bytes)
    return records[::-1]
