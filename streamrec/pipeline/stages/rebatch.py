"""Stages that change batches: `Unbatch` splits them into rows, `CyclicBatch` makes batches of several sizes in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamrec.pipeline.elements.chunk import Batches, Chunk
from streamrec.pipeline.elements.columns import compacted, joined, leaves, map_nest, rows_of, window
from streamrec.pipeline.elements.positions import Position, Positions, Precursor, StageState, with_state
from streamrec.pipeline.elements.specs import SparseTensorSpec, TensorSpec
from streamrec.pipeline.engine.stage import UNKNOWN_CARDINALITY, Stage, Step
from streamrec.pipeline.stages.batch import batch_spec, batched
from streamrec.tfrecord import Frames

__all__ = ["CyclicBatch", "RowPositions", "Unbatch"]


@dataclass(frozen=True, slots=True)
class Unbatch(Stage):
    """Splits each element into its rows: the records of Frames, the rows of arrays (in dicts and tuples too)."""

    def element_spec(self, spec: Any) -> Any:
        rows = map_nest(row_spec, spec)
        return None if None in leaves(rows) else rows

    def cardinalities(self, count: int, rows: int) -> tuple[int, int]:
        return rows, UNKNOWN_CARDINALITY

    def start(self, key: str, state: int | None) -> Step:
        return _Unbatching(key, state or 0)


class _Unbatching(Step):
    def __init__(self, key: str, first: int) -> None:
        super().__init__()
        self._key = key
        self._first = first

    def feed(self, chunk: Chunk) -> list[Chunk]:
        self.failures = []
        if isinstance(chunk.elements, Batches):
            parts = [self._rows(chunk, 0, chunk.elements.frames, chunk.elements.size)]
        else:
            parts = [self._tried(chunk, index, batch) for index, batch in enumerate(chunk.elements)]
        return [part for part in parts if len(part.elements) or part.error]

    def _tried(self, chunk: Chunk, index: int, batch: Any) -> Chunk:
        """The rows of one batch, or what is wrong with it."""
        try:
            return self._rows(chunk, index, rows_of(batch))
        except Exception as error:
            self.failures.append((error, index))
            return Chunk.failure(error, chunk.positions, index + 1)

    def _rows(self, chunk: Chunk, index: int, rows: Any, size: int | None = None) -> Chunk:
        """The rows of one batch, or of several of one size; without those that came before the run was resumed."""
        first, self._first = self._first, 0
        positions = RowPositions(chunk.positions, self._key, index, len(rows) if size is None else size, first)
        rows = window(rows, first, len(rows)) if first else rows
        return Chunk.weighed(rows, positions)


@dataclass(frozen=True, slots=True)
class RowPositions(Positions):
    """Positions of the rows of batches of `size`, of which the first is `batch`; row `first` of it comes first."""

    inner: Positions
    stage: str
    batch: int
    size: int
    first: int

    def at(self, index: int) -> Position:
        batches, row = divmod(self.first + index, self.size)
        return with_state(self.inner.at(self.batch + batches), self.stage, row)

    def made_of(self, index: int, row: int) -> Sequence[Precursor]:
        batches, own = divmod(self.first + index, self.size)
        return (Precursor(self.inner, self.batch + batches, own),)


def row_spec(spec: Any) -> Any:
    """The spec of a row; None where it is not known, or there are no rows."""
    if not isinstance(spec, TensorSpec | SparseTensorSpec):
        return None
    return type(spec)(spec.shape[1:], spec.dtype) if spec.shape else None


@dataclass(frozen=True, slots=True)
class CyclicBatch(Stage):
    """Joins elements to batches of these sizes, again and again."""

    batch_sizes: tuple[int, ...]
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        if not self.batch_sizes:
            raise ValueError("batch_size=[] must hold at least one number")

    def cardinality(self, count: int) -> int:
        if count < 0:
            return count
        rounds, rest = divmod(count, sum(self.batch_sizes))
        batches = rounds * len(self.batch_sizes)
        for size in self.batch_sizes:
            if rest < size:
                break
            batches, rest = batches + 1, rest - size
        return batches + (rest > 0 and not self.drop_remainder)

    def element_spec(self, spec: Any) -> Any:
        return batch_spec(spec, None)

    def start(self, key: str, state: int | None) -> Step:
        return _CyclicBatching(self, key, state or 0)


class _CyclicBatching(Step):
    def __init__(self, stage: CyclicBatch, key: str, turn: int) -> None:
        super().__init__()
        self._sizes = stage.batch_sizes
        self._drop_remainder = stage.drop_remainder
        self._key = key
        self._turn = turn
        self._parts: list[Any] = []
        self._held = 0
        self._mark: tuple[Positions, int] | None = None
        self._end: tuple[Positions, int] | None = None

    def feed(self, chunk: Chunk) -> list[Chunk]:
        first, turn, batches = 0, self._turn, []
        marks = [self._mark or (chunk.positions, 0)]
        while (last := first + self._size - self._held) <= len(chunk.elements):
            self._parts.append(window(chunk.elements, first, last))
            batches.append(self._release())
            marks.append((chunk.positions, last))
            self._turn, first = (self._turn + 1) % len(self._sizes), last
        self._mark, self._end = marks[-1], (chunk.positions, len(chunk.elements))
        if first < len(chunk.elements):
            self._parts.append(compacted(window(chunk.elements, first, len(chunk.elements))))
            self._held += len(chunk.elements) - first
        places = TurnPositions(tuple(marks), self._key, turn, len(self._sizes))
        return [Chunk.weighed(batches, places)] if batches else []

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """What came before an element that failed is a smaller batch; the next size's batch begins after it."""
        left: list[Chunk] = []
        if self._held and not self._drop_remainder:
            assert self._mark is not None
            assert self._end is not None
            places = TurnPositions((self._mark, self._end), self._key, self._turn, len(self._sizes))
            left = [Chunk.weighed([self._release()], places)]
            self._turn = (self._turn + 1) % len(self._sizes)
        self._parts, self._held, self._mark = [], 0, None
        return [*left, replace(chunk, positions=StageState(chunk.positions, self._key, self._turn))]

    def flush(self) -> list[Chunk]:
        if not self._held or self._drop_remainder:
            return []
        assert self._mark is not None
        places = TurnPositions((self._mark,), self._key, self._turn, len(self._sizes))
        return [Chunk.weighed([self._release()], places)]

    @property
    def _size(self) -> int:
        """How many elements the batch has that is under way."""
        return self._sizes[self._turn]

    def _release(self) -> Any:
        """The batch that was held."""
        parts, self._parts, self._held = self._parts, [], 0
        if isinstance(parts[0], Frames):
            parts = [part if isinstance(part, Frames) else Frames.of(part) for part in parts]
        return batched(joined(parts))


@dataclass(frozen=True, slots=True)
class TurnPositions(Positions):
    """Positions between batches, each with whose turn it is; after the last mark the input has ended."""

    marks: tuple[tuple[Positions, int], ...]
    stage: str
    turn: int
    turns: int

    def at(self, index: int) -> Position:
        positions, inner = self.marks[min(index, len(self.marks) - 1)]
        found: Mapping[str, Any] = with_state(positions.at(inner), self.stage, (self.turn + index) % self.turns)
        return {**found, "ended": True} if index == len(self.marks) else found

    def made_of(self, index: int, row: int) -> Sequence[Precursor]:
        """A row of a batch whose elements are all in one chunk, or the first one."""
        positions, first = self.marks[index]
        end = self.marks[index + 1] if index + 1 < len(self.marks) else None
        return (Precursor(positions, first + row),) if not row or (end and end[0] is positions) else ()
