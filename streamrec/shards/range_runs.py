"""The byte ranges to read for records of known offsets. Pure.

Here is also the check that the bytes are these records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.tfrecord import FOOTER_BYTES, HEADER_BYTES, Frames, as_spans

if TYPE_CHECKING:
    from typing_extensions import Buffer

OFFSET_BITS: Final = 42
"""A reference is `shard << OFFSET_BITS | offset`.

That allows for shards of up to 4 TiB, and two million of them.
"""

GAP_BYTES: Final = 256 << 10
"""One request reads records whose distance is at most this, in bytes.

A second request costs more than these bytes.
"""

RUN_BYTES: Final = 8 << 20
"""The approximate size of one request, so that several can run at the same time."""

Numbers = npt.NDArray[np.int64]


class ByteRun(NamedTuple):
    """A byte range of one shard with the requested records `first` to `last` (exclusive)."""

    shard: int
    start: int
    end: int
    first: int
    last: int


def byte_runs(
    references: Numbers, sizes: Numbers, gap: int = GAP_BYTES, most: int = RUN_BYTES
) -> list[ByteRun]:
    """The byte ranges to read for records with these sorted references and sizes of payloads.

    Up to `gap` other bytes are read instead of sending two requests. A range ends after about
    `most` bytes.

    >>> for run in byte_runs(np.array([0, 100, 5000]), np.array([84, 84, 84]), gap=1000):
    ...     print(run)
    ByteRun(shard=0, start=0, end=200, first=0, last=2)
    ByteRun(shard=0, start=5000, end=5100, first=2, last=3)
    """
    ends = references + sizes + (HEADER_BYTES + FOOTER_BYTES)
    shards = references >> OFFSET_BITS
    apart = shards * (
        gap + 1
    )  # keeps the end of a shard of 4 TiB away from the start of the next one
    runs = []
    for first, last in group_ranges(references + apart, ends + apart, gap, most):
        shard = int(shards[first])
        origin = shard << OFFSET_BITS
        runs.append(
            ByteRun(
                shard, int(references[first]) - origin, int(ends[last - 1]) - origin, first, last
            )
        )
    return runs


def group_ranges(starts: Numbers, ends: Numbers, gap: int, most: int) -> Iterator[tuple[int, int]]:
    """Groups sorted ranges that are at most `gap` apart, into groups of about `most`.

    Gives `first` to `last` (exclusive) of each.
    """
    breaks = (np.flatnonzero(starts[1:] - ends[:-1] > gap) + 1).tolist()
    for first, last in zip([0, *breaks], [*breaks, len(starts)], strict=True):
        while first < last:
            stop = max(
                first + 1, int(np.searchsorted(starts[first:last], starts[first] + most)) + first
            )
            yield first, stop
            first = stop


def first_difference(frames: Frames) -> int | None:
    """The first record whose stored length or CRC32C is not that of its payload.

    None if there is none.

    The payloads are as in a shard, each between its header and its footer.
    """
    adjacent = (frames.spans[1:, 0] - frames.spans[:-1, 1] == HEADER_BYTES + FOOTER_BYTES).all()
    if adjacent and are_framed(frames):
        return None
    around = frames.spans + np.array([-HEADER_BYTES, FOOTER_BYTES])
    stored, spans = kernels.gather([frames.buffer], None, around)
    correct = kernels.encode_frames(frames.buffer, np.ascontiguousarray(frames.spans))
    if bytes_equal(stored, correct):
        return None
    bounds = enumerate(as_spans(spans).tolist())
    return next(
        i
        for i, (start, end) in bounds
        if memoryview(stored)[start:end] != memoryview(correct)[start:end]
    )


def are_framed(frames: Frames) -> bool:
    """Whether framing the bytes of adjacent records gives these records; without a copy."""
    first = int(frames.spans[0, 0]) - HEADER_BYTES
    data = memoryview(frames.buffer)[first : int(frames.spans[-1, 1]) + FOOTER_BYTES]
    spans, position, code, _ = kernels.scan_frames(data, 0, True, len(data))
    return (
        code == kernels.OK
        and position == len(data)
        and np.array_equal(as_spans(spans) + first, frames.spans)
    )


def bytes_equal(one: Buffer, other: Buffer) -> bool:
    """Whether two buffers hold the same bytes.

    Python compares memoryviews byte by byte, which is far slower.
    """
    return np.array_equal(
        np.frombuffer(memoryview(one), np.uint8), np.frombuffer(memoryview(other), np.uint8)
    )
