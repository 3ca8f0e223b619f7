"""Frames: many records as one buffer and an array of spans, without an object for each.

Rules:
- Frames are immutable, and so is their buffer: its creator never writes to it again.
- Payloads are not copied: `spans[i]` is the start and end of record i in `buffer`.
- Users get `bytes` (`frames[i]`, iteration); kernels take `buffer` and `spans`.
- A slice shares the buffer, unless the buffer is much larger than the slice: then the slice is a
  copy. Batches share the buffer, too: keep `compact()` of those that outlive the others.

`Scattered` are Frames with several buffers, such as records of many shards in turn. Joining them
would copy every byte, and most users (the parser, the shuffle buffer, loops over records) do not
need that.
- `buffer` and `spans` are those of a copy, which is made once, on first use.
- A window whose records are in one buffer is plain Frames over that buffer.
- A row is in the format of `kernels.pick`: start, end, `buffer << BUFFER_BITS`, and an unused
  number.
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

BUFFER_BITS = 32

HEADER_BYTES = 12
"""Length (8) and its masked CRC32C (4): what precedes each payload of a shard."""
FOOTER_BYTES = 4
"""The payload's masked CRC32C: what follows it."""

WASTE = 2
"""`trim` copies records whose buffer is more than this many times larger than they are."""

SCATTERED_BYTES = 512
"""Records of at least this average length stay in their buffers.

A row for each costs less than copying them. Measured in processor time: a sixth more at 84 bytes,
before a shuffle; a quarter less at 680 bytes, from S3.
"""

Spans = npt.NDArray[np.int64]

NO_SPANS: Spans = np.empty((0, 2), np.int64)
NO_SPANS.flags.writeable = False


def as_spans(packed: Buffer) -> Spans:
    """Spans as the kernels return them, as a read-only array of shape [n, 2]."""
    spans = np.frombuffer(memoryview(packed).toreadonly(), np.int64)
    return spans.reshape(-1, 2)


def mask_crc32c(crc32c: int) -> int:
    """Masks a CRC32C as shards store it, so that CRCs of data with CRCs in it stay strong."""
    return ((crc32c >> 15 | crc32c << 17) + 0xA282EAD8) & 0xFFFFFFFF


def payload(view: memoryview, first: int, last: int) -> memoryview:
    """Bytes first to last (exclusive) of a buffer; a span outside it is a ValueError."""
    if not 0 <= first <= last <= len(view):
        raise ValueError(f"the span [{first}, {last}) leaves the buffer of {len(view):,} bytes")
    return view[first:last]


class Frames(Sequence[bytes]):
    """An immutable sequence of records over one buffer.

    Args:
        buffer: Any C-contiguous bytes-like object.
        spans: int64 array of shape [n, 2]: where each payload starts and ends in `buffer`.
        origin: Offset of the buffer's first byte in the (decompressed) shard, if the buffer is a
            byte range of one shard; None if the records come from several places.

    Examples:
        >>> frames = Frames(b"catdog", np.array([[0, 3], [3, 6]]))
        >>> len(frames), frames[1], list(frames[:1])
        (2, b'dog', [b'cat'])
    """

    __slots__ = ("buffer", "buffers", "origin", "places", "spans")

    buffer: Buffer
    spans: Spans
    origin: int | None
    buffers: Sequence[Buffer]
    """All buffers: of Scattered, several."""
    places: npt.NDArray[np.int64]
    """Where the records lie in these: the spans, or the rows of Scattered."""

    def __init__(self, buffer: Buffer, spans: Spans, origin: int | None = None) -> None:
        self.buffer = buffer
        self.spans = spans
        self.origin = origin
        self.buffers = (buffer,)
        self.places = spans

    @classmethod
    def of(cls, records: Iterable[bytes]) -> Frames:
        """Copies Python objects into a new buffer."""
        kept = list(records)
        ends = np.cumsum([len(record) for record in kept], dtype=np.int64)
        spans = np.empty((len(kept), 2), np.int64)
        spans[:, 1] = ends
        spans[1:, 0] = ends[:-1]
        spans[:1, 0] = 0
        return cls(b"".join(kept), spans)

    @classmethod
    def in_turn(cls, inputs: Sequence[Sequence[Frames]], block: int) -> Frames:
        """Records of several inputs in turn, `block` of each at a time, copied into one buffer.

        The windows of an input fill all its turns exactly; its last turn may be shorter.
        """
        parts = [[(window.buffer, window.spans) for window in windows] for windows in inputs]
        buffer, spans = kernels.interleave(parts, block)
        return Frames(buffer, as_spans(spans))

    def __len__(self) -> int:
        return len(self.places)

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
        """All payloads as bytes objects, in lists of about 256 KiB."""
        size = max(1, len(self) * (1 << 18) // max(1, self.extent))
        for first in range(0, len(self), size):
            places = np.ascontiguousarray(self.places[first : first + size])
            yield kernels.objects(self.buffers, places)

    def views(self) -> Iterator[memoryview]:
        """The payloads without a copy, one memoryview each, in order."""
        view = memoryview(self.buffer).cast("B")
        return (payload(view, first, last) for first, last in self.spans.tolist())

    def window(self, first: int, last: int) -> Frames:
        """Records first to last (exclusive) without a copy, even if the buffer is much larger."""
        return Frames(self.buffer, self.spans[first:last], self.origin)

    def take(self, indices: Any) -> Frames:
        """The records at these indices, without a copy."""
        return Frames(self.buffer, np.ascontiguousarray(self.spans[indices]))

    @property
    def start(self) -> int | None:
        """Offset of the first record's header in the (decompressed) shard.

        None without an `origin`.
        """
        return None if self.origin is None else self.offset(0)

    def offset(self, index: int) -> int:
        """Offset of record `index`'s header in the shard.

        For `len(frames)`, it is that of the end of the last record.

        Raises:
            ValueError: The frames have no `origin`.
        """
        if self.origin is None:
            raise ValueError(
                "these frames come from several places: they have no offset in one shard"
            )
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
        return self.places[:, 1] - self.places[:, 0]

    @property
    def pinned(self) -> int:
        """Bytes that these records keep alive."""
        return sum(memoryview(buffer).nbytes for buffer in self.buffers)

    @property
    def extent(self) -> int:
        """Bytes from the first payload's start to the last one's end.

        It is an upper bound of `nbytes` in constant time.
        """
        return int(self.spans[-1, 1]) - int(self.spans[0, 0]) if len(self.spans) else 0

    def compact(self) -> Frames:
        """The same records in a buffer of their own, back to back."""
        buffer, spans = kernels.gather([self.buffer], None, np.ascontiguousarray(self.spans))
        return Frames(buffer, as_spans(spans))

    def trim(self, factor: int = WASTE) -> Frames:
        """The same records.

        They are copied if the buffers are more than `factor` times larger than they are.
        """
        return self.compact() if self.pinned > factor * self.nbytes else self

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The records as an Arrow large_binary array, through the Arrow PyCapsule interface.

        Arrow needs them back to back, so they are copied once: `pyarrow.array(frames)`.
        """
        packed = self.compact()
        return export_binary(packed.buffer, packed.spans, requested_schema)

    def _slice(self, index: slice) -> Frames:
        first, last, step = index.indices(len(self))
        if step != 1:
            return self.take(index)._unpin()
        return self.window(first, max(first, last))._unpin()

    def _unpin(self) -> Frames:
        """The same records; as a copy if the buffer is large and much larger than they are."""
        return self.trim(16) if self.pinned > 1 << 16 else self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frames):
            return NotImplemented
        return len(self) == len(other) and all(
            a == b for a, b in zip(self.views(), other.views(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        """The first records, for notebooks."""
        return html.payloads(repr(self), self.lengths, self.views())

    def __repr__(self) -> str:
        return f"<Frames of {len(self):,} records, {self.nbytes:,} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        copy = self.compact()
        return Frames, (bytes(copy.buffer), copy.spans)


def are_long(nbytes: int, count: int) -> bool:
    """Whether `count` records of `nbytes` together are long enough to stay in their buffers."""
    return nbytes >= SCATTERED_BYTES * count


class Scattered(Frames):
    """An immutable sequence of records over several C-contiguous buffers.

    Its `places` are rows, C-contiguous int64 of shape [n, 4], one per record, with the columns that
    the module's docstring describes.
    """

    __slots__ = ("_joined",)

    def __init__(self, buffers: Sequence[Buffer], rows: npt.NDArray[np.int64]) -> None:
        self.buffers = buffers
        self.places = rows
        self.origin = None
        self._joined: Frames | None = None

    @classmethod
    def in_turn(cls, inputs: Sequence[Sequence[Frames]], block: int) -> Scattered:
        """The same records, which stay in their buffers."""
        buffers: list[Buffer] = []
        parts = []
        for windows in inputs:
            rows_of_input = []
            for window in windows:
                rows_of_input.append((window.places, len(buffers)))
                buffers += window.buffers
            parts.append(rows_of_input)
        rows = np.frombuffer(memoryview(kernels.rows_in_turn(parts, block)).toreadonly(), np.int64)
        return cls(buffers, rows.reshape(-1, 4))

    def _join(self) -> Frames:
        if self._joined is None:
            self._joined = self.compact()
        return self._joined

    @property
    def buffer(self) -> Buffer:  # type: ignore[override]
        """All payloads back to back, copied on first use."""
        return self._join().buffer

    @property
    def spans(self) -> Spans:  # type: ignore[override]
        """The start and end of each payload in `buffer`."""
        return self._join().spans

    def views(self) -> Iterator[memoryview]:
        views = [memoryview(buffer).cast("B") for buffer in self.buffers]
        return (
            payload(views[tag >> BUFFER_BITS], start, end)
            for start, end, tag, _ in self.places.tolist()
        )

    def window(self, first: int, last: int) -> Frames:
        rows = self.places[first:last]
        if len(rows) and rows[0, 2] == rows[-1, 2] and (rows[:, 2] == rows[0, 2]).all():
            buffer = self.buffers[int(rows[0, 2]) >> BUFFER_BITS]
            return Frames(buffer, np.ascontiguousarray(rows[:, :2]))
        return Scattered(self.buffers, rows)

    def take(self, indices: Any) -> Frames:
        return Scattered(self.buffers, np.ascontiguousarray(self.places[indices]))

    @property
    def extent(self) -> int:
        return self.nbytes

    def compact(self) -> Frames:
        buffer, spans = kernels.pick(self.buffers, self.places)
        return Frames(buffer, as_spans(spans))

    def _view(self, index: int) -> memoryview:
        start, end, tag, _ = self.places[index].tolist()
        return payload(memoryview(self.buffers[tag >> BUFFER_BITS]).cast("B"), start, end)


def join_frames(inputs: Sequence[Sequence[Frames]], block: int = 1) -> Frames:
    """The records of several inputs, each in windows, `block` of each in turn.

    The last turn may be shorter.

    Short ones are copied, so that their buffers are freed; long ones stay in their buffers, unless
    they are a few records of a large one.
    """
    nbytes = sum(window.nbytes for windows in inputs for window in windows)
    if are_long(nbytes, sum(len(window) for windows in inputs for window in windows)):
        trimmed = [[window.trim() for window in windows] for windows in inputs]
        return Scattered.in_turn(trimmed, block)
    return Frames.in_turn(inputs, block)
