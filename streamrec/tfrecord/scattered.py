"""Scattered: records of many buffers, without a copy.

Records of many shards in turn, or a batch that many blocks hold, cost a copy of every byte before anybody looks at
them, if they are to be Frames over one buffer. Most who look need none: the parser, the shuffle buffer, whoever takes
records one by one.

Rules:
- It is Frames: `buffer` and `spans` are there, by a copy that is made when one is asked for, once.
- A window whose records are in one buffer is plain Frames over it.
- A row is what `kernels.pick` takes: START, END, `buffer << BUFFER_BITS`, and a number without meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.tfrecord.frames import Frames, Spans, as_spans, payload

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BUFFER_BITS", "SCATTERED_BYTES", "Scattered", "are_long"]

BUFFER_BITS = 32

SCATTERED_BYTES = 512
"""Records of at least this average length stay in their buffers: noting where they are costs less than copying them.
Measured in processor time: a sixth more at 84 bytes, before a shuffle; a quarter less at 680 bytes, from S3."""


def are_long(windows: Sequence[Frames]) -> bool:
    """Whether these records are long enough to stay in their buffers."""
    return sum(window.nbytes for window in windows) >= SCATTERED_BYTES * sum(map(len, windows))


class Scattered(Frames):
    """An immutable sequence of records over many buffers.

    Args:
        buffers: C-contiguous bytes-like objects.
        rows: int64 of shape [n, 4], C-contiguous: see the top of this file.
    """

    __slots__ = ("_joined", "buffers", "rows")

    def __init__(self, buffers: Sequence[Buffer], rows: npt.NDArray[np.int64]) -> None:
        self.buffers = buffers
        self.rows = rows
        self.origin = None
        self._joined: Frames | None = None

    @classmethod
    def in_turn(cls, inputs: Sequence[Sequence[Frames]], block: int) -> Scattered:
        """Records of several inputs in turn, `block` of each, again and again.

        Args:
            inputs: For each its windows. An input holds exactly what its turns take; the last turn may be shorter.
            block: Records in a turn.
        """
        buffers: list[Buffer] = []
        parts = []
        for windows in inputs:
            one = []
            for window in windows:
                places, more = window.lying()
                one.append((places, len(buffers)))
                buffers += more
            parts.append(one)
        rows = np.frombuffer(memoryview(kernels.rows_in_turn(parts, block)).toreadonly(), np.int64)
        return cls(buffers, rows.reshape(-1, 4))

    @classmethod
    def joining(cls, windows: Sequence[Frames]) -> Scattered:
        """Records of several windows, one after the other."""
        return cls.in_turn([windows], 1)

    @property
    def joined(self) -> Frames:
        """The same records back to back in one buffer: made when it is asked for first, then kept."""
        if self._joined is None:
            self._joined = self.compact()
        return self._joined

    @property
    def buffer(self) -> Buffer:  # type: ignore[override]
        """All payloads back to back; to ask for it copies them."""
        return self.joined.buffer

    @property
    def spans(self) -> Spans:  # type: ignore[override]
        """Where each payload starts and ends in `buffer`."""
        return self.joined.spans

    def __len__(self) -> int:
        return len(self.rows)

    def views(self) -> Iterator[memoryview]:
        views = [memoryview(buffer).cast("B") for buffer in self.buffers]
        return (payload(views[tag >> BUFFER_BITS], start, end) for start, end, tag, _ in self.rows.tolist())

    def lying(self) -> tuple[npt.NDArray[np.int64], Sequence[Buffer]]:
        return self.rows, self.buffers

    def window(self, first: int, last: int) -> Frames:
        rows = self.rows[first:last]
        if len(rows) and rows[0, 2] == rows[-1, 2] and (rows[:, 2] == rows[0, 2]).all():
            return Frames(self.buffers[int(rows[0, 2]) >> BUFFER_BITS], np.ascontiguousarray(rows[:, :2]))
        return Scattered(self.buffers, rows)

    def picked(self, indices: Any) -> Frames:
        return Scattered(self.buffers, np.ascontiguousarray(self.rows[indices]))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return self.rows[:, 1] - self.rows[:, 0]

    @property
    def extent(self) -> int:
        return self.nbytes

    @property
    def pinned(self) -> int:
        return sum(memoryview(buffer).nbytes for buffer in self.buffers)

    def compact(self) -> Frames:
        buffer, spans = kernels.pick(self.buffers, self.rows)
        return Frames(buffer, as_spans(spans))

    def _view(self, index: int) -> memoryview:
        start, end, tag, _ = self.rows[index].tolist()
        return payload(memoryview(self.buffers[tag >> BUFFER_BITS]).cast("B"), start, end)
