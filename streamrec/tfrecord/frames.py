"""Frames: many records as one buffer and their spans, so that no record costs a Python object.

Rules:
- A Frames is immutable; so is what it shows. Whoever made the buffer never writes to it again.
- Payloads stay where they are: `spans[i]` says where record i starts and ends in `buffer`. Those of many shards or
  blocks may be in many buffers (`scattered.py`), and are copied to one when a caller asks for it.
- People get `bytes` (`frames[i]`, iteration); kernels take `buffer` and `spans`.
- Slicing shares the buffer, unless the slice would pin a buffer that is much larger than itself: then it copies.
  Batches share it too: who keeps some of them for long, and drops others, keeps `compact()` of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from streamrec import html, kernels
from streamrec.kernels.arrow_buffers import export_binary

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["FOOTER_BYTES", "HEADER_BYTES", "Frames", "as_spans", "payload"]

HEADER_BYTES = 12
"""Length (8) and its masked CRC32C (4): what precedes each payload of a shard."""
FOOTER_BYTES = 4
"""The payload's masked CRC32C: what follows it."""

PIN_FACTOR = 16
PIN_BYTES = 1 << 16

PIECE_BYTES = 1 << 18
"""Bytes of records that become objects at a time."""

WASTE = 2
"""Records that are kept, of a buffer that is more than this many times larger, get a buffer of their own."""

Spans = npt.NDArray[np.int64]


def as_spans(packed: Buffer) -> Spans:
    """Spans as the kernels return them, as a read-only array of shape [n, 2]."""
    spans = np.frombuffer(memoryview(packed).toreadonly(), np.int64)
    return spans.reshape(-1, 2)


def payload(view: memoryview, first: int, last: int) -> memoryview:
    """Bytes first to last of a buffer. (A slice takes any bounds, negative ones among them.)

    Raises:
        ValueError: The span leaves the buffer, or ends before it starts.
    """
    if not 0 <= first <= last <= len(view):
        raise ValueError(f"the span [{first}, {last}) leaves the buffer of {len(view):,} bytes")
    return view[first:last]


class Frames(Sequence[bytes]):
    """An immutable sequence of records over one buffer.

    Args:
        buffer: Any C-contiguous bytes-like object.
        spans: int64 array of shape [n, 2]: where each payload starts and ends in `buffer`.
        origin: Offset in the (decompressed) shard of the buffer's first byte, where the frames lie as they lay
            in one shard; None where they were gathered from several places.

    Examples:
        >>> frames = Frames(b"catdog", np.array([[0, 3], [3, 6]]))
        >>> len(frames), frames[1], list(frames[:1])
        (2, b'dog', [b'cat'])
    """

    __slots__ = ("buffer", "origin", "spans")

    buffer: Buffer
    spans: Spans
    origin: int | None

    def __init__(self, buffer: Buffer, spans: Spans, origin: int | None = None) -> None:
        self.buffer = buffer
        self.spans = spans
        self.origin = origin

    @classmethod
    def of(cls, records: Iterable[bytes]) -> Frames:
        """Gathers records that are Python objects: the way in for data that was not read from a shard."""
        kept = list(records)
        ends = np.cumsum([len(record) for record in kept], dtype=np.int64)
        spans = np.empty((len(kept), 2), np.int64)
        spans[:, 1] = ends
        spans[1:, 0] = ends[:-1]
        spans[:1, 0] = 0
        return cls(b"".join(kept), spans)

    def __len__(self) -> int:
        return len(self.spans)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Frames: ...
    def __getitem__(self, index: int | slice) -> bytes | Frames:
        if isinstance(index, slice):
            return self._slice(index)
        return bytes(self._view(index))

    def _view(self, index: int) -> memoryview:
        return payload(memoryview(self.buffer).cast("B"), *self.spans[index].tolist())

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self.pieces())

    def pieces(self) -> Iterator[list[bytes]]:
        """All payloads, an object each, about a quarter of a megabyte of them at a time."""
        size = max(1, len(self) * PIECE_BYTES // max(1, self.extent))
        places, buffers = self.lying()
        for first in range(0, len(self), size):
            yield kernels.objects(buffers, np.ascontiguousarray(places[first : first + size]))

    def views(self) -> Iterator[memoryview]:
        """The payloads without a copy, one memoryview each, in order."""
        view = memoryview(self.buffer).cast("B")
        return (payload(view, first, last) for first, last in self.spans.tolist())

    def lying(self) -> tuple[npt.NDArray[np.int64], Sequence[Buffer]]:
        """Where the payloads are, as spans or as rows (`scattered.py`), and in which buffers."""
        return self.spans, (self.buffer,)

    def window(self, first: int, last: int) -> Frames:
        """Records first to last (exclusive) without a copy, however large the buffer that this pins."""
        return Frames(self.buffer, self.spans[first:last], self.origin)

    def picked(self, indices: Any) -> Frames:
        """The records at these indices, without a copy."""
        return Frames(self.buffer, np.ascontiguousarray(self.spans[indices]))

    @property
    def start(self) -> int | None:
        """Offset in the (decompressed) shard of the first record's header; None where they were gathered."""
        return None if self.origin is None else self.offset(0)

    def offset(self, index: int) -> int:
        """Offset in the shard of record `index`'s header; at `len(frames)`, of what follows the last record.

        Raises:
            ValueError: The frames were gathered from several places and have no offset in one shard.
        """
        if self.origin is None:
            raise ValueError("these frames were gathered: they have no offset in one shard")
        if not len(self.spans):
            return self.origin
        if index < len(self.spans):
            return self.origin + int(self.spans[index, 0]) - HEADER_BYTES
        return self.origin + int(self.spans[-1, 1]) + FOOTER_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads together."""
        return int(self.lengths.sum())

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Bytes of each payload."""
        return self.spans[:, 1] - self.spans[:, 0]

    @property
    def pinned(self) -> int:
        """Bytes that these records keep alive."""
        return memoryview(self.buffer).nbytes

    @property
    def extent(self) -> int:
        """Bytes from the first payload's start to the last one's end: `nbytes` and little more, at no cost."""
        return int(self.spans[-1, 1]) - int(self.spans[0, 0]) if len(self.spans) else 0

    def compact(self) -> Frames:
        """The same records in a buffer of their own, back to back."""
        buffer, spans = kernels.gather([self.buffer], None, np.ascontiguousarray(self.spans))
        return Frames(buffer, as_spans(spans))

    def trimmed(self, factor: int = WASTE) -> Frames:
        """The same records: without a copy, or copied where they keep more than `factor` times their bytes alive."""
        return self.compact() if self.pinned > factor * self.nbytes else self

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The records as an Arrow large_binary array, through the Arrow PyCapsule interface.

        Arrow wants them back to back, so they are copied, once: `pyarrow.array(frames)`.

        Args:
            requested_schema: The type that the caller wants; see the Arrow PyCapsule interface.

        Returns:
            The capsules `arrow_schema` and `arrow_array`.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        packed = self.compact()
        return export_binary(packed.buffer, packed.spans, requested_schema)

    def _slice(self, index: slice) -> Frames:
        first, last, step = index.indices(len(self))
        if step != 1:
            return self.picked(index)._unpinned()
        return self.window(first, max(first, last))._unpinned()

    def _unpinned(self) -> Frames:
        return self.trimmed(PIN_FACTOR) if self.pinned > PIN_BYTES else self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frames):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self.views(), other.views(), strict=True))

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        """The first records, for notebooks."""
        return html.payloads(repr(self), self.lengths, self.views())

    def __repr__(self) -> str:
        return f"<Frames of {len(self):,} records, {self.nbytes:,} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        copy = self.compact()
        return Frames, (bytes(copy.buffer), copy.spans)
