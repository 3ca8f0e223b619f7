"""Chunks flow through a pipeline: elements, with the positions between them.

Rules:
- A chunk's elements are Frames (records that are not Python objects yet), Batches, Columns, a list
  of any objects, or Mixed. Where chunks end depends on timing, and on where a run was resumed; no
  element and no batch may depend on it.
- Chunks are immutable. Their positions (`positions.py`) say where to resume.
- A chunk with an error is an element that failed: it has no elements, and its position is after the
  failed element.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from streamrec.example import BytesColumn
from streamrec.example.columns import CompositeTensor
from streamrec.pipeline.elements.columns import Columns, leaves, window
from streamrec.pipeline.elements.positions import Positions, shift
from streamrec.tfrecord import Frames


class Batches:
    """Batches of `size` records. Each is a window of the same Frames, made when it is asked for."""

    __slots__ = ("_count", "_frames", "_size")

    def __init__(self, frames: Frames, size: int) -> None:
        self._frames = frames
        self._size = size
        self._count = len(frames) // size

    # Not at run time: the interpreter's own iterator knows how many elements are left.
    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Frames]: ...

    def __len__(self) -> int:
        return self._count

    @property
    def frames(self) -> Frames:
        """All records of all batches."""
        return self._frames

    @property
    def size(self) -> int:
        """The number of records in a batch."""
        return self._size

    def __getitem__(self, index: int | slice) -> Any:
        size = self._size
        if isinstance(index, slice):
            first, last, _ = index.indices(self._count)
            return Batches(self._frames.window(first * size, last * size), size)
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._frames.window(index * size, index * size + size)


Elements = Frames | Batches | Columns | Sequence[Any]

OBJECT_BYTES = 64
FAILURE_BYTES = 1 << 10
"""About how many bytes an error keeps alive."""
SPAN_BYTES = 16

NUMBERS: Final = frozenset({bool, int, float, *(np.dtype(code).type for code in "?bBhHiIlLefdFD")})
"""Types of numbers whose values all have one size."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Elements with their positions, or one element that failed.

    `nbytes` is about how many bytes both keep alive.
    """

    elements: Elements
    positions: Positions
    nbytes: int
    error: Exception | None = None

    @classmethod
    def failure(cls, error: Exception, positions: Positions, index: int) -> Chunk:
        """An element that failed; `positions.at(index)` is the position after it."""
        return cls((), shift(positions, index), FAILURE_BYTES, error)

    def windows(self, count: int) -> Iterator[Chunk]:
        """Splits the chunk into chunks of `count` elements."""
        whole = len(self.elements)
        for first in range(0, whole, count):
            last = min(first + count, whole)
            nbytes = self.nbytes * last // whole - self.nbytes * first // whole
            yield Chunk(window(self.elements, first, last), shift(self.positions, first), nbytes)

    def at(self, positions: Positions) -> Chunk:
        """The same elements with other positions; `dataclasses.replace` costs ten times this."""
        return Chunk(self.elements, positions, self.nbytes, self.error)

    @classmethod
    def weigh(cls, elements: Elements, positions: Positions) -> Chunk:
        """A chunk whose `nbytes` is computed from its elements and positions."""
        return cls(elements, positions, weigh(elements) + positions.weight(len(elements)))


def weigh(elements: Iterable[Any]) -> int:
    """About how many bytes objects keep alive; memory budgets count these."""
    if isinstance(elements, Frames):
        return weigh_one(elements)
    if isinstance(elements, Columns):
        return weigh(leaves(elements.nest))
    if (
        isinstance(elements, list)
        and len(elements) > 1
        and len(kinds := set(map(type, elements))) == 1
    ):
        kind = kinds.pop()
        if kind is bytes or kind is str:  # fast: there may be a million elements a second
            return sum(map(len, elements)) + OBJECT_BYTES * len(elements)
        if kind in NUMBERS:
            return len(elements) * weigh_one(elements[0])
    return sum(map(weigh_one, elements))


def retained_bytes(column: BytesColumn) -> int:
    """How many bytes strings keep alive: also those of the records around them."""
    if column.is_scattered:  # parsing leaves strings in many buffers only if they fill most of them
        return column.nbytes
    spans = column.spans.reshape(-1, 2)
    return max(column.nbytes, abs(int(spans[-1, 1] - spans[0, 0]))) if len(spans) else 0


def weigh_objects(array: npt.NDArray[Any]) -> int:
    """About how many bytes the strings, arrays or dicts in an object array keep alive."""
    if not set(map(type, array.flat)) <= {bytes, str}:
        return sum(map(weigh_one, array.flat))
    # A `bytes` object has 33 more than its length, which the allocator rounds up.
    return sum(map(len, array.flat)) + 40 * array.size


def weigh_one(element: Any) -> int:
    """About how many bytes one element keeps alive, with the parts of dicts, tuples and lists."""
    if isinstance(element, np.ndarray):  # first, since a batch may have dozens
        strings = weigh_objects(element) if element.dtype.hasobject else 0
        return element.nbytes + strings + OBJECT_BYTES
    if isinstance(element, Frames):
        return abs(element.extent) + SPAN_BYTES * len(element)
    if isinstance(element, BytesColumn):
        return retained_bytes(element) + element.places.nbytes
    if isinstance(element, bytes | bytearray | str):
        return len(element) + OBJECT_BYTES
    if isinstance(element, Mapping):
        return weigh(element.values()) + OBJECT_BYTES
    if isinstance(element, tuple | list | CompositeTensor):
        parts = element.parts if isinstance(element, CompositeTensor) else element
        return weigh(parts) + OBJECT_BYTES
    chain = getattr(element, "chain", None)
    if chain is not None:  # a dataset made by `window` holds its elements
        return weigh(getattr(chain.source, "data", ())) + OBJECT_BYTES
    return int(getattr(element, "nbytes", 0)) + OBJECT_BYTES
