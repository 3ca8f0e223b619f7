"""Stages: frozen descriptions, and the steps that carry them out, without I/O.

Rules:
- A stage is frozen, picklable and comparable. `start(state)` makes its running step; state is given there and
  nowhere else, so starting and resuming are one code path.
- A step has `feed(chunk)` (the chunks that it completes), `flush()` (what is left when the input ends) and
  `done` (it wants no more input). It never awaits, sleeps, or sees where its chunks come from.
- Whatever an emitted chunk's positions say is enough to go on from there: a step whose output straddles
  input chunks points back to the input's places, and needs no state of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from streamrec.pipeline.chunk import Batches, Chunk, Elements, Marks, Positions, StageState, Stride, weigh
from streamrec.tfrecord import Frames, Joining

__all__ = ["Batch", "Map", "Stage", "Step", "Take", "stack"]


class Step(Protocol):
    """A stage at work."""

    @property
    def done(self) -> bool:
        """Whether the step wants no more input: the pipeline ends with what it gave so far."""

    def feed(self, chunk: Chunk) -> list[Chunk]:
        """Takes a chunk; returns those that it completes, possibly none."""

    def flush(self) -> list[Chunk]:
        """Says that the input ended; returns what is left."""


class Stage(Protocol):
    """A description of what happens to elements."""

    offload: ClassVar[bool]
    """Whether `feed` calls code of the user's, and so runs in a worker thread beside the event loop."""

    def start(self, key: str, state: int | None) -> Step:
        """Makes the running step.

        Args:
            key: The name under which positions hold this stage's state.
            state: That state, where the pipeline resumes.
        """


@dataclass(frozen=True, slots=True)
class Batch:
    """Joins `batch_size` elements in one: records to Frames, arrays (in dicts and tuples too) by stacking."""

    batch_size: int
    drop_remainder: bool = False
    offload: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} must be at least 1")

    def start(self, key: str, state: int | None) -> Step:
        return _Batching(self.batch_size, self.drop_remainder)


class _Batching:
    done = False

    def __init__(self, size: int, drop_remainder: bool) -> None:
        self._size = size
        self._drop_remainder = drop_remainder
        self._held: Joining | list[Any] | None = None
        self._mark: tuple[Positions, int] | None = None

    def feed(self, chunk: Chunk) -> list[Chunk]:
        count = len(chunk.elements)
        mark = self._mark or (chunk.positions, 0)
        first = min(count, self._size - len(self._held)) if self._held is not None else 0
        if first:
            self._hold(window(chunk.elements, 0, first))
        completed = self._completed(mark, (chunk.positions, first))
        last = count - (count - first) % self._size
        whole = self._whole(chunk, first, last)
        if last > first or completed:
            mark = (chunk.positions, last)
        if last < count:
            self._hold(window(chunk.elements, last, count))
        self._mark = mark
        return completed + whole

    def flush(self) -> list[Chunk]:
        if self._held is None or self._drop_remainder:
            return []
        assert self._mark is not None
        batch = self._release()
        return [Chunk([batch], _Remainder(self._mark), weigh([batch]))]

    def _completed(self, start: tuple[Positions, int], end: tuple[Positions, int]) -> list[Chunk]:
        """The batch that earlier chunks began, when it is whole."""
        if self._held is None or len(self._held) < self._size:
            return []
        batch = self._release()
        return [Chunk([batch], Marks((start, end)), weigh([batch]))]

    def _whole(self, chunk: Chunk, first: int, last: int) -> list[Chunk]:
        """The batches that lie in one chunk: of records without a copy."""
        if first == last:
            return []
        elements, positions = window(chunk.elements, first, last), Stride(chunk.positions, first, self._size)
        if isinstance(elements, Frames):
            return [Chunk(Batches(elements, self._size), positions, chunk.nbytes)]
        batches = [stack(elements[at : at + self._size]) for at in range(0, last - first, self._size)]
        return [Chunk(batches, positions, weigh(batches))]

    def _hold(self, elements: Elements) -> None:
        """Keeps the start of a batch: records are copied, so that their blocks do not pile up."""
        if self._held is None:
            self._held = Joining(self._size) if isinstance(elements, Frames) else []
        if isinstance(self._held, Joining):
            assert isinstance(elements, Frames)
            self._held.add(elements)
        else:
            self._held.extend(elements)

    def _release(self) -> Any:
        """The batch that was held."""
        held, self._held = self._held, None
        return held.frames() if isinstance(held, Joining) else stack(held or ())


@dataclass(frozen=True, slots=True)
class _Remainder:
    """Positions of a last, smaller batch: before it its first element's, after it the end of the input."""

    before: tuple[Positions, int]

    def at(self, index: int) -> dict[str, Any]:
        positions, inner = self.before
        position = dict(positions.at(inner))
        if index:
            position["ended"] = True
        return position


@dataclass(frozen=True, slots=True)
class Map:
    """Calls a function for each element."""

    function: Callable[[Any], Any]
    offload: ClassVar[bool] = True

    def start(self, key: str, state: int | None) -> Step:
        return _Mapping(self.function)


class _Mapping:
    done = False

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._error: Exception | None = None

    def feed(self, chunk: Chunk) -> list[Chunk]:
        self.flush()
        results: list[Any] = []
        try:
            results.extend(map(self._function, chunk.elements))
        except Exception as error:
            self._error = error
        return [Chunk(results, chunk.positions, weigh(results))] if results else self.flush()

    def flush(self) -> list[Chunk]:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return []


@dataclass(frozen=True, slots=True)
class Take:
    """The first `count` elements; all of them where `count` is -1, as in tf.data."""

    count: int
    offload: ClassVar[bool] = False

    def start(self, key: str, state: int | None) -> Step:
        return _Taking(self.count, key, state or 0)


class _Taking:
    def __init__(self, count: int, key: str, taken: int) -> None:
        self._count = count
        self._key = key
        self._taken = taken

    @property
    def done(self) -> bool:
        return 0 <= self._count <= self._taken

    def feed(self, chunk: Chunk) -> list[Chunk]:
        count = len(chunk.elements)
        left = count if self._count < 0 else min(count, self._count - self._taken)
        if not left:
            return []
        elements = chunk.elements if left == count else window(chunk.elements, 0, left)
        positions = StageState(chunk.positions, self._key, self._taken)
        self._taken += left
        return [Chunk(elements, positions, chunk.nbytes)]

    def flush(self) -> list[Chunk]:
        return []


def window(elements: Elements, first: int, last: int) -> Any:
    """Elements first to last (exclusive): of Frames without a copy, since chunks are short-lived."""
    return elements.window(first, last) if isinstance(elements, Frames) else elements[first:last]


def stack(elements: Sequence[Any]) -> Any:
    """A batch of elements that are no raw records, as tf.data batches them.

    Dicts and tuples are batched part by part; arrays and numbers get a first dimension; `bytes` and `str`
    become an object array, which keeps trailing NULs.

    Raises:
        ValueError: The shapes differ; the message names them.
    """
    first = elements[0]
    if isinstance(first, dict):
        return {key: stack([element[key] for element in elements]) for key in first}
    if isinstance(first, tuple):
        parts = [stack(part) for part in zip(*elements, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if isinstance(first, bytes | str):
        strings = np.empty(len(elements), object)
        strings[:] = elements
        return strings
    arrays = [np.asarray(element) for element in elements]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ValueError(f"elements of shapes {sorted(shapes)} do not make one batch: map them to one shape first")
    return np.stack(arrays)
