"""CyclicBatch: batches of several sizes in turn, as tf.data's `rebatch` of a list makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import compacted, joined, window
from streamrec.pipeline.elements.positions import Position, Positions, Precursor, StageState, with_state
from streamrec.pipeline.engine.stage import Stage, Step
from streamrec.pipeline.stages.batch import batched, check_size
from streamrec.tfrecord import Frames

__all__ = ["CyclicBatch"]


@dataclass(frozen=True, slots=True)
class CyclicBatch(Stage):
    """Joins elements to batches of these sizes, again and again."""

    batch_sizes: tuple[int, ...]
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        if not self.batch_sizes:
            raise ValueError("batch_size=[] must hold a number at least")
        for size in self.batch_sizes:
            check_size(size)

    def start(self, key: str, state: int | None) -> Step:
        return _CyclicBatching(self, key, state or 0)


class _CyclicBatching:
    done = False

    def __init__(self, stage: CyclicBatch, key: str, turn: int) -> None:
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
        """What came before an element that failed is a smaller batch; the next size's batch begins behind it."""
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
    """Positions between batches, each with whose turn it is; behind the last mark the input has ended."""

    marks: tuple[tuple[Positions, int], ...]
    stage: str
    turn: int
    turns: int

    def at(self, index: int) -> Position:
        positions, inner = self.marks[min(index, len(self.marks) - 1)]
        found: Mapping[str, Any] = with_state(positions.at(inner), self.stage, (self.turn + index) % self.turns)
        return {**found, "ended": True} if index == len(self.marks) else found

    def made_of(self, index: int, row: int) -> Sequence[Precursor]:
        """A row of a batch that lies in one chunk, or the first one."""
        positions, first = self.marks[index]
        end = self.marks[index + 1] if index + 1 < len(self.marks) else None
        return (Precursor(positions, first + row),) if not row or (end and end[0] is positions) else ()
