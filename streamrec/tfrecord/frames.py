"""Frames: many records as one buffer and their spans, so that no record costs a Python object.

Rules:
- A Frames is immutable; so is what it shows. The maker of the buffer never writes to it again.
- Payloads stay where they are: `spans[i]` says where record i starts and ends in `buffer`.
- People get `bytes` (`frames[i]`, iteration); kernels take `buffer` and `spans`.
- Slicing shares the buffer, unless the slice would pin a buffer that is much larger than itself: then it copies.
  Batches share it too: keep `compact()` of those that outlive the others.

`Scattered` are Frames whose records are in many buffers, such as those of many shards in turn: to copy them together
costs a copy of every byte, and most users (the parser, the shuffle buffer, loops over records) need none.
- `buffer` and `spans` are there, by a copy that is made when one is asked for, once.
- A window whose records are in one buffer is plain Frames over it.
- A row is what `kernels.pick` takes: start, end, `buffer << BUFFER_BITS`, and a number without meaning.

`Joining` makes one Frames of several as they come:
- Short records are copied at once, so that their blocks are free.
- Long ones stay in their blocks, save for a few out of a large block.
- The first records decide which of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from streamrec import html, kernels
from streamrec.kernels import copy_bytes
from streamrec.kernels.arrow_buffers import export_binary

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "BUFFER_BITS",
    "FOOTER_BYTES",
    "HEADER_BYTES",
    "SCATTERED_BYTES",
    "Frames",
    "Joining",
    "Scattered",
    "are_long",
    "as_spans",
]

BUFFER_BITS = 32

HEADER_BYTES = 12
"""Length (8) and its masked CRC32C (4): what precedes each payload of a shard."""
FOOTER_BYTES = 4
"""The payload's masked CRC32C: what follows it."""

WASTE = 2
"""Records that are kept, of a buffer that is more than this many times larger, get a buffer of their own."""

SCATTERED_BYTES = 512
"""Records of at least this average length stay in their buffers: noting where they are costs less than copying them.
Measured in processor time: a sixth more at 84 bytes, before a shuffle; a quarter less at 680 bytes, from S3."""

Spans = npt.NDArray[np.int64]


def as_spans(packed: Buffer) -> Spans:
    """Spans as the kernels return them, as a read-only array of shape [n, 2]."""
    spans = np.frombuffer(memoryview(packed).toreadonly(), np.int64)
    return spans.reshape(-1, 2)


def mask_crc32c(crc32c: int) -> int:
    """A CRC32C as shards hold it: so that CRCs of data that holds CRCs are as strong."""
    return ((crc32c >> 15 | crc32c << 17) + 0xA282EAD8) & 0xFFFFFFFF


def payload(view: memoryview, first: int, last: int) -> memoryview:
    """Bytes first to last of a buffer. (A slice takes any bounds, negative ones among them.)"""
    if not 0 <= first <= last <= len(view):
        raise ValueError(f"the span [{first}, {last}) leaves the buffer of {len(view):,} bytes")
    return view[first:last]


class Frames(Sequence[bytes]):
    """An immutable sequence of records over one buffer.

    Args:
        buffer: Any C-contiguous bytes-like object.
        spans: int64 array of shape [n, 2]: where each payload starts and ends in `buffer`.
        origin: Offset in the (decompressed) shard of the buffer's first byte, where the buffer is a byte range of one
            shard; None where the records were gathered from several places.

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
        size = max(1, len(self) * (1 << 18) // max(1, self.extent))
        places, buffers = self._places()
        for first in range(0, len(self), size):
            yield kernels.objects(buffers, np.ascontiguousarray(places[first : first + size]))

    def views(self) -> Iterator[memoryview]:
        """The payloads without a copy, one memoryview each, in order."""
        view = memoryview(self.buffer).cast("B")
        return (payload(view, first, last) for first, last in self.spans.tolist())

    def _places(self) -> tuple[npt.NDArray[np.int64], Sequence[Buffer]]:
        """Where the payloads are, as spans or as rows of Scattered, and in which buffers."""
        return self.spans, (self.buffer,)

    def window(self, first: int, last: int) -> Frames:
        """Records first to last (exclusive) without a copy, however large the buffer that this pins."""
        return Frames(self.buffer, self.spans[first:last], self.origin)

    def take(self, indices: Any) -> Frames:
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

    def trim(self, factor: int = WASTE) -> Frames:
        """The same records: without a copy, or copied where they keep more than `factor` times their bytes alive."""
        return self.compact() if self.pinned > factor * self.nbytes else self

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The records as an Arrow large_binary array, through the Arrow PyCapsule interface.

        Arrow wants them back to back, so they are copied, once: `pyarrow.array(frames)`.
        """
        packed = self.compact()
        return export_binary(packed.buffer, packed.spans, requested_schema)

    def _slice(self, index: slice) -> Frames:
        first, last, step = index.indices(len(self))
        if step != 1:
            return self.take(index)._unpin()
        return self.window(first, max(first, last))._unpin()

    def _unpin(self) -> Frames:
        """The same records, copied where they pin a buffer that is much larger, and large."""
        return self.trim(16) if self.pinned > 1 << 16 else self

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
                places, more = window._places()
                one.append((places, len(buffers)))
                buffers += more
            parts.append(one)
        rows = np.frombuffer(memoryview(kernels.rows_in_turn(parts, block)).toreadonly(), np.int64)
        return cls(buffers, rows.reshape(-1, 4))

    @classmethod
    def joining(cls, windows: Sequence[Frames]) -> Scattered:
        """Records of several windows, one after the other."""
        return cls.in_turn([windows], 1)

    def _join(self) -> Frames:
        if self._joined is None:
            self._joined = self.compact()
        return self._joined

    @property
    def buffer(self) -> Buffer:  # type: ignore[override]
        """All payloads back to back; asking for it copies them."""
        return self._join().buffer

    @property
    def spans(self) -> Spans:  # type: ignore[override]
        """Where each payload starts and ends in `buffer`."""
        return self._join().spans

    def __len__(self) -> int:
        return len(self.rows)

    def views(self) -> Iterator[memoryview]:
        views = [memoryview(buffer).cast("B") for buffer in self.buffers]
        return (payload(views[tag >> BUFFER_BITS], start, end) for start, end, tag, _ in self.rows.tolist())

    def _places(self) -> tuple[npt.NDArray[np.int64], Sequence[Buffer]]:
        return self.rows, self.buffers

    def window(self, first: int, last: int) -> Frames:
        rows = self.rows[first:last]
        if len(rows) and rows[0, 2] == rows[-1, 2] and (rows[:, 2] == rows[0, 2]).all():
            return Frames(self.buffers[int(rows[0, 2]) >> BUFFER_BITS], np.ascontiguousarray(rows[:, :2]))
        return Scattered(self.buffers, rows)

    def take(self, indices: Any) -> Frames:
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


class Joining:
    """Frames that grow.

    Args:
        records: How many records are expected in all; the first ones tell how long they are.
    """

    def __init__(self, records: int) -> None:
        self._expected = records
        self._count = 0
        self._copies = False
        self._parts: list[Frames] = []
        self._buffer = memoryview(bytearray())
        self._filled = 0
        self._spans: list[Spans] = []

    def __len__(self) -> int:
        return self._count

    def add(self, frames: Frames) -> None:
        """Appends the records of `frames`."""
        if not len(frames):
            return
        if not self._count:
            self._copies = not are_long([frames])
        self._count += len(frames)
        if self._copies:
            self._copy(frames if are_adjacent(frames) else frames.compact())
        else:
            self._parts.append(frames.trim())

    def frames(self) -> Frames:
        """All records that were added."""
        if self._spans:
            return Frames(self._buffer[: self._filled], np.concatenate(self._spans))
        if not self._parts:
            return Frames.of(())
        return self._parts[0] if len(self._parts) == 1 else Scattered.joining(self._parts)

    def _copy(self, frames: Frames) -> None:
        first, last = int(frames.spans[0, 0]), int(frames.spans[-1, 1])
        end = self._filled + last - first
        if end > len(self._buffer):
            self._grow(end)
        copy_bytes(self._buffer[self._filled : end], memoryview(frames.buffer).cast("B")[first:last])
        self._spans.append(frames.spans + (self._filled - first))
        self._filled = end

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
