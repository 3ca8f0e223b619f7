"""Which bytes to read for records whose places are known, and whether what came are these records. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.tfrecord import FOOTER_BYTES, HEADER_BYTES, Frames, as_spans

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["OFFSET_BITS", "ByteRun", "byte_runs", "first_difference"]

OFFSET_BITS: Final = 42
"""A reference is `shard << OFFSET_BITS | offset`: shards of up to 4 TiB, and two million of them."""

GAP_BYTES: Final = 256 << 10
"""Records nearer to each other than this are read at once: a request costs more than these bytes."""

RUN_BYTES: Final = 8 << 20
"""About how much is read by one request, so that several can be under way."""

Numbers = npt.NDArray[np.int64]


class ByteRun(NamedTuple):
    """Bytes of one shard, and which records they hold: `first` to `last` (exclusive) of those wanted."""

    shard: int
    start: int
    end: int
    first: int
    last: int


def byte_runs(references: Numbers, sizes: Numbers, gap: int = GAP_BYTES, most: int = RUN_BYTES) -> list[ByteRun]:
    """Which bytes to read.

    Args:
        references: Those wanted, sorted.
        sizes: Their payloads' bytes.
        gap: Up to this many unwanted bytes are read rather than sending two requests.
        most: A run ends after about this many bytes.

    >>> byte_runs(np.array([0, 100, 5000]), np.array([84, 84, 84]), gap=1000)
    [ByteRun(shard=0, start=0, end=200, first=0, last=2), ByteRun(shard=0, start=5000, end=5100, first=2, last=3)]
    """
    ends = references + sizes + (HEADER_BYTES + FOOTER_BYTES)
    shards = references >> OFFSET_BITS
    breaks = np.flatnonzero((references[1:] - ends[:-1] > gap) | (shards[1:] != shards[:-1])) + 1
    found = []
    for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(references)], strict=True):
        while first < last:
            stop = max(first + 1, int(np.searchsorted(references[first:last], references[first] + most)) + first)
            shard, start = int(shards[first]), int(references[first])
            origin = shard << OFFSET_BITS
            found.append(ByteRun(shard, start - origin, int(ends[stop - 1]) - origin, first, stop))
            first = stop
    return found


def first_difference(frames: Frames) -> int | None:
    """The first record whose length or CRC32C, as stored around it, are not those of its payload; None for none.

    Args:
        frames: Payloads as they are in a shard, each between its header and its footer.
    """
    if follow_each_other(frames) and are_framed(frames):
        return None
    around = frames.spans + np.array([-HEADER_BYTES, FOOTER_BYTES])
    there, spans = kernels.gather([frames.buffer], None, around)
    wanted = kernels.encode_frames(frames.buffer, np.ascontiguousarray(frames.spans))
    if bytes_equal(there, wanted):
        return None
    bounds = enumerate(as_spans(spans).tolist())
    return next(i for i, (start, end) in bounds if memoryview(there)[start:end] != memoryview(wanted)[start:end])


def follow_each_other(frames: Frames) -> bool:
    """Whether the records follow each other without a gap."""
    return bool((frames.spans[1:, 0] - frames.spans[:-1, 1] == HEADER_BYTES + FOOTER_BYTES).all())


def are_framed(frames: Frames) -> bool:
    """Whether records that follow each other are what their bytes are framed to, without a copy."""
    first = int(frames.spans[0, 0]) - HEADER_BYTES
    data = memoryview(frames.buffer)[first : int(frames.spans[-1, 1]) + FOOTER_BYTES]
    spans, position, code, _ = kernels.scan_frames(data, 0, True, len(data))
    return code == kernels.OK and position == len(data) and np.array_equal(as_spans(spans) + first, frames.spans)


def bytes_equal(one: Buffer, other: Buffer) -> bool:
    """Whether two buffers hold the same bytes. (Memoryviews are compared byte by byte: far slower.)"""
    return np.array_equal(np.frombuffer(memoryview(one), np.uint8), np.frombuffer(memoryview(other), np.uint8))
