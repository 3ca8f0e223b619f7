"""`Unbatch` splits batches into rows; `CyclicBatch` makes batches of several sizes in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamrec.arguments import at_least_one, check_each, check_fields, check_flag, check_named
from streamrec.pipeline.elements.chunk import Batches, Chunk
from streamrec.pipeline.elements.columns import leaves, map_nest, rows_of, window
from streamrec.pipeline.elements.positions import (
    Origin,
    Position,
    Positions,
    shift,
    with_stage_state,
    with_state,
)
from streamrec.pipeline.elements.specs import SparseTensorSpec, TensorSpec
from streamrec.pipeline.engine.stage import UNKNOWN_CARDINALITY, Stage, Step
from streamrec.pipeline.stages.batch import Batch, BatchStep, batch_spec


@dataclass(frozen=True, slots=True)
class Unbatch(Stage):
    """Splits each element into its rows.

    These are the records of Frames, or the rows of arrays (in dicts and tuples too).
    """

    def element_spec(self, spec: Any) -> Any:
        rows = map_nest(row_spec, spec)
        return None if None in leaves(rows) else rows

    def cardinalities(self, count: int, rows: int) -> tuple[int, int]:
        return rows, UNKNOWN_CARDINALITY

    def start(self, key: str, state: int | None) -> Step:
        return Unbatching(key, state or 0)


class Unbatching(Step):
    """Splits each batch; `first` rows of the first one were given before the run was resumed."""

    def __init__(self, key: str, first: int) -> None:
        super().__init__()
        self._key = key
        self._first = first

    def feed(self, chunk: Chunk) -> list[Chunk]:
        self.failures = []
        if isinstance(chunk.elements, Batches):
            parts = [self._rows(chunk, 0, chunk.elements.frames, chunk.elements.size)]
        else:
            parts = [
                self._try_batch(chunk, index, batch) for index, batch in enumerate(chunk.elements)
            ]
        return [part for part in parts if len(part.elements) or part.error]

    def _try_batch(self, chunk: Chunk, index: int, batch: Any) -> Chunk:
        try:
            return self._rows(chunk, index, rows_of(batch))
        except Exception as error:
            self.failures.append((error, index))
            return Chunk.failure(error, chunk.positions, index + 1)

    def _rows(self, chunk: Chunk, index: int, rows: Any, size: int | None = None) -> Chunk:
        """The rows of one batch, or of several of one size.

        Rows that were given before the run was resumed are left out.
        """
        first = self._first
        self._first = 0
        positions = RowPositions(
            inner=chunk.positions,
            stage=self._key,
            batch=index,
            size=len(rows) if size is None else size,
            first=first,
        )
        rows = window(rows, first, len(rows)) if first else rows
        return Chunk.weigh(rows, positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPositions(Positions):
    """Positions of the rows of batches of `size`, from row `first` of batch number `batch` on."""

    inner: Positions
    stage: str
    batch: int
    size: int
    first: int

    def at(self, index: int) -> Position:
        batches, row = divmod(self.first + index, self.size)
        return with_state(self.inner.at(self.batch + batches), self.stage, row)

    def origins(self, index: int, row: int) -> Sequence[Origin]:
        batches, row = divmod(self.first + index, self.size)
        return (Origin(self.inner, self.batch + batches, row),)


def row_spec(spec: Any) -> Any:
    """The spec of a row; None if it is unknown, or the spec has no rows."""
    if not isinstance(spec, TensorSpec | SparseTensorSpec):
        return None
    return type(spec)(spec.shape[1:], spec.dtype) if spec.shape else None


@dataclass(frozen=True, slots=True)
class CyclicBatch(Stage):
    """Joins elements to batches of these sizes in turn."""

    batch_sizes: tuple[int, ...]
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        check_fields(
            self,
            batch_sizes=check_named("batch_size", check_each(at_least_one)),
            drop_remainder=check_flag,
        )
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
            batches += 1
            rest -= size
        return batches + (rest > 0 and not self.drop_remainder)

    def element_spec(self, spec: Any) -> Any:
        return batch_spec(spec, None)

    def start(self, key: str, state: int | None) -> Step:
        return _CyclicBatching(self, key, state or 0)


class _CyclicBatching(BatchStep):
    def __init__(self, stage: CyclicBatch, key: str, turn: int) -> None:
        super().__init__(Batch(stage.batch_sizes[turn], stage.drop_remainder))
        self._sizes = stage.batch_sizes
        self._key = key
        self._turn = turn

    def feed(self, chunk: Chunk) -> list[Chunk]:
        out: list[Chunk] = []
        failures: list[tuple[Exception, int | None]] = []
        first = 0
        count = len(chunk.elements)
        while first < count:
            last = min(first + self._size - self._held, count)
            out += super().feed(self._part(chunk, first, last))
            failures += ((error, first + (index or 0)) for error, index in self.failures)
            first = last
            if not self._held:
                self._take_turn()
        self.failures = failures
        return out

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """Gives the elements before a failure as a smaller batch.

        A batch of the next size begins after it.
        """
        *left, failure = super().fail(chunk)
        if left:
            self._take_turn()
        turn = self._turn
        positions = with_stage_state(chunk.positions, self._key, lambda _: turn)
        return [*left, replace(failure, positions=positions)]

    def _part(self, chunk: Chunk, first: int, last: int) -> Chunk:
        """The elements of a chunk that belong to one batch.

        The position after them has the next size's turn.
        """
        turn = self._turn
        turns = len(self._sizes)
        count = last - first

        def turn_at(index: int) -> int:
            return turn if index < count else (turn + 1) % turns

        positions = with_stage_state(shift(chunk.positions, first), self._key, turn_at)
        return Chunk(
            window(chunk.elements, first, last),
            positions,
            chunk.nbytes * count // len(chunk.elements),
        )

    def _take_turn(self) -> None:
        self._turn = (self._turn + 1) % len(self._sizes)
        self._size = self._sizes[self._turn]
