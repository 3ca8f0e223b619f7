"""Which bytes to read for records whose places are known, and whether what came are these records. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.tfrecord import FOOTER_BYTES, HEADER_BYTES, Frames, as_spans

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
        gap: So many bytes that nobody wants are read rather than asking twice.
        most: A run ends behind so many bytes.

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
    """The first record whose length or CRC32C, as they stand around it, are not those of its payload; None for none.

    Args:
        frames: Payloads that lie as they lay in a shard, each between its header and its footer.
    """
    around = frames.spans + np.array([-HEADER_BYTES, FOOTER_BYTES])
    there, spans = kernels.gather([frames.buffer], None, around)
    wanted = kernels.encode_frames(frames.buffer, np.ascontiguousarray(frames.spans))
    if memoryview(there) == memoryview(wanted):
        return None
    bounds = enumerate(as_spans(spans).tolist())
    return next(i for i, (start, end) in bounds if memoryview(there)[start:end] != memoryview(wanted)[start:end])
