"""Joining: several Frames that become one.

Rules:
- Short records are copied when they come, so that their blocks are free at once.
- Long ones stay in their blocks (`scattered.py`), save for a few out of a large block.
- The first records decide which of the two.
"""

from __future__ import annotations

import numpy as np

from streamrec import kernels
from streamrec.kernels.copying import copy_bytes
from streamrec.tfrecord.frames import FOOTER_BYTES, HEADER_BYTES, Frames, Spans
from streamrec.tfrecord.scattered import Scattered, are_long

__all__ = ["Joining"]


class Joining:
    """Frames that grow.

    Args:
        records: How many records are expected in all; the first ones tell how long they are.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        self._parts: Parts | Copies | None = None

    def __len__(self) -> int:
        return 0 if self._parts is None else len(self._parts)

    def add(self, frames: Frames) -> None:
        """Appends the records of `frames`."""
        if not len(frames):
            return
        if self._parts is None:
            self._parts = Parts() if are_long([frames]) else Copies(self._records)
        self._parts.add(frames)

    def frames(self) -> Frames:
        """All records that were added."""
        return Frames.of(()) if self._parts is None else self._parts.frames()


class Parts:
    """Records that stay in their blocks."""

    def __init__(self) -> None:
        self._parts: list[Frames] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, frames: Frames) -> None:
        self._parts.append(frames.trimmed())
        self._count += len(frames)

    def frames(self) -> Frames:
        return self._parts[0] if len(self._parts) == 1 else Scattered.joining(self._parts)


class Copies:
    """Records that are copied to one buffer, which grows."""

    def __init__(self, records: int) -> None:
        self._expected = records
        self._count = 0
        self._filled = 0
        self._buffer = memoryview(bytearray())
        self._spans: list[Spans] = []

    def __len__(self) -> int:
        return self._count

    def add(self, frames: Frames) -> None:
        if not are_adjacent(frames):
            frames = frames.compact()
        first, last = int(frames.spans[0, 0]), int(frames.spans[-1, 1])
        end = self._filled + last - first
        self._count += len(frames)
        if end > len(self._buffer):
            self._grow(end)
        copy_bytes(self._buffer[self._filled : end], memoryview(frames.buffer).cast("B")[first:last])
        self._spans.append(frames.spans + (self._filled - first))
        self._filled = end

    def frames(self) -> Frames:
        return Frames(self._buffer[: self._filled], np.concatenate(self._spans))

    def _grow(self, end: int) -> None:
        """Makes room for what is expected at the present length of records, and for half as much again later on."""
        likely = end * max(self._expected, self._count) // self._count
        size = likely + likely // 16 if not self._filled else max(likely, end + end // 2)
        grown = memoryview(kernels.allocate(size))
        copy_bytes(grown[: self._filled], self._buffer[: self._filled])
        self._buffer = grown


def are_adjacent(frames: Frames) -> bool:
    """Whether records follow each other, with no more between them than headers and footers."""
    gaps = frames.spans[1:, 0] - frames.spans[:-1, 1]
    return not len(gaps) or bool(gaps.min() >= 0 and gaps.max() <= HEADER_BYTES + FOOTER_BYTES)
