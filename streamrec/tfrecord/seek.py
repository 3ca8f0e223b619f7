"""Where the records of a piece begin: the first header at or after any byte of an uncompressed shard. Pure.

A reader of a piece that begins in the middle of a record sees that record's payload first, and a payload may hold
whole records itself (a TFRecord file that is stored as a record). What tells them apart is what follows: the shard's
own records follow one another to its end; the run of those within a payload breaks off where the payload ends, at the
latest before its CRC. So a start is settled when whole records have followed one another for SETTLE_BYTES, or to the
end of the shard. If the run breaks off before, this file cannot tell a payload's end from damage; a reader that has
the bytes before the start can (see `shards.pieces`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamrec import kernels
from streamrec.tfrecord.frames import FOOTER_BYTES, HEADER_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["SETTLE_BYTES", "Start", "find_start", "is_record", "spanning"]

SETTLE_BYTES = 1 << 20
"""How far records must follow one another before the first of them is believed to be the shard's own."""


@dataclass(frozen=True, slots=True)
class Start:
    """What the bytes so far say about where the records begin; places are counted from the first of the bytes.

    Args:
        at: The first header, or the first place that may still be one.
        wants: How many bytes from there on are wanted before more can be said; 0 for none.
        breaks: Where the run of records from `at` on breaks off, too soon to tell why; with `wants`, where the record
            begins that is not all there, and may never be; None where a run goes on.
    """

    at: int
    wants: int = 0
    breaks: int | None = None


def find_start(data: Buffer, max_record_bytes: int, final: bool) -> Start:
    """Looks for the first header.

    Args:
        data: The bytes from the wanted start on.
        max_record_bytes: A longer length is not believed.
        final: They reach to the end of the shard.

    Returns:
        With `wants`: more must be read. Else `at` is the first header, or the end where there is none.
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
    """Whether these bytes are one whole good record."""
    spans, end, _, _ = kernels.scan_frames(data, 0, True, sys.maxsize)
    return memoryview(spans).nbytes == 16 and end == memoryview(data).nbytes


def spanning(data: Buffer, reach: int, max_record_bytes: int) -> list[tuple[int, int]]:
    """Start and end of the records that begin in `data` and may hold all up to `reach`; the nearest first.

    Args:
        data: Bytes from before a start.
        reach: A place at or after the end of what they may hold, counted from the start of `data`.
        max_record_bytes: A longer length is not believed.
    """
    found = []
    within = memoryview(data).cast("B")[: reach + FOOTER_BYTES - 1]
    at, wants = kernels.find_header(within, 0, False, max_record_bytes)
    while wants != HEADER_BYTES:
        _, at, code, wants = kernels.scan_frames(within, at, True, max_record_bytes)
        if code == kernels.OK and wants > HEADER_BYTES and at + wants >= reach + FOOTER_BYTES:
            found.append((at, at + wants))
        if at + 1 >= len(within):
            break
        at, wants = kernels.find_header(within, at + 1, False, max_record_bytes)
    return found[::-1]
