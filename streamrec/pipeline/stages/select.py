"""Stages that pick elements: take, skip, filter, take_while, shard; and enumerate. Frames stay Frames.

Those that count say in their positions how many elements they had seen; the others need no state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import Columns, compacted, select, window
from streamrec.pipeline.elements.positions import IndexMap, Positions, StageState
from streamrec.pipeline.engine.ranks import warn_once
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.calling import Calling, failure_of

__all__ = ["Enumerate", "Filter", "Shard", "Skip", "Take", "TakeWhile"]


@dataclass(frozen=True, slots=True)
class Take(Stage):
    """The first `count` elements; all of them where `count` is -1, as in tf.data."""

    count: int
    picks: ClassVar[bool] = True

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

    def fail(self, chunk: Chunk) -> list[Chunk]:
        return [replace(chunk, positions=StageState(chunk.positions, self._key, self._taken))]

    def flush(self) -> list[Chunk]:
        return []


@dataclass(frozen=True, slots=True)
class Skip(Stage):
    """All but the first `count` elements; none where `count` is -1, as in tf.data."""

    count: int
    picks: ClassVar[bool] = True

    def start(self, key: str, state: int | None) -> Step:
        return _Skipping(self.count, key, state or 0)


class _Skipping:
    def __init__(self, count: int, key: str, seen: int) -> None:
        self._count = count
        self._key = key
        self._seen = seen

    @property
    def done(self) -> bool:
        return self._count < 0

    def feed(self, chunk: Chunk) -> list[Chunk]:
        count = len(chunk.elements)
        first = min(count, max(0, self._count - self._seen))
        positions = StageState(chunk.positions, self._key, self._seen)
        self._seen += count
        if not first:
            return [Chunk(chunk.elements, positions, chunk.nbytes)]
        return picked(chunk, positions, np.arange(first, count), count)

    def fail(self, chunk: Chunk) -> list[Chunk]:
        return [replace(chunk, positions=StageState(chunk.positions, self._key, self._seen))]

    def flush(self) -> list[Chunk]:
        return []


@dataclass(frozen=True, slots=True)
class Shard(Stage):
    """Every element whose number, modulo `num_shards`, is `index`."""

    num_shards: int
    index: int
    picks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.num_shards < 1:
            raise ValueError(f"num_shards={self.num_shards} must be at least 1")
        if not 0 <= self.index < self.num_shards:
            raise ValueError(f"index={self.index} must be at least 0 and less than num_shards={self.num_shards}")

    def start(self, key: str, state: int | None) -> Step:
        return _Sharding(self.num_shards, self.index, key, state or 0)


class _Sharding:
    done = False

    def __init__(self, shards: int, index: int, key: str, seen: int) -> None:
        self._shards = shards
        self._index = index
        self._key = key
        self._seen = seen

    def feed(self, chunk: Chunk) -> list[Chunk]:
        count = len(chunk.elements)
        first = (self._index - self._seen) % self._shards
        positions = StageState(chunk.positions, self._key, self._seen)
        self._seen += count
        return picked(chunk, positions, np.arange(first, count, self._shards), count)

    def fail(self, chunk: Chunk) -> list[Chunk]:
        return [replace(chunk, positions=StageState(chunk.positions, self._key, self._seen))]

    def flush(self) -> list[Chunk]:
        if 0 < self._seen <= self._index:
            warn_once(
                f"shard({self._shards}, {self._index}) gives nothing: it came after {self._seen:,} elements. In "
                "distributed training the other ranks wait for this one. Use fewer shards, or give shard() more "
                "elements: records in place of file names, or repeat()"
            )
        return []


@dataclass(frozen=True, slots=True)
class Enumerate(Stage):
    """Pairs each element with its number, an int64, from `first` on."""

    first: int = 0

    def start(self, key: str, state: int | None) -> Step:
        return _Enumerating(self.first, key, state or 0)


class _Enumerating:
    done = False

    def __init__(self, first: int, key: str, seen: int) -> None:
        self._first = first
        self._key = key
        self._seen = seen

    def feed(self, chunk: Chunk) -> list[Chunk]:
        count = len(chunk.elements)
        positions = StageState(chunk.positions, self._key, self._seen)
        numbers = np.arange(self._first + self._seen, self._first + self._seen + count, dtype=np.int64)
        self._seen += count
        elements = chunk.elements.nest if isinstance(chunk.elements, Columns) else chunk.elements
        return [Chunk(Columns((numbers, elements)), positions, chunk.nbytes + numbers.nbytes)]

    def fail(self, chunk: Chunk) -> list[Chunk]:
        self._seen += 1  # an element that failed has a number, too, as in tf.data
        return [replace(chunk, positions=StageState(chunk.positions, self._key, self._seen))]

    def flush(self) -> list[Chunk]:
        return []


@dataclass(frozen=True, slots=True)
class Filter(Stage):
    """The elements for which a function gives something true."""

    function: Callable[..., Any]
    offload: ClassVar[Offload] = Offload.ALWAYS
    picks: ClassVar[bool] = True

    def start(self, key: str, state: int | None) -> Step:
        return _Filtering(self.function)


class _Filtering(Calling):
    def feed(self, chunk: Chunk) -> list[Chunk]:
        out = []
        for stretch in self._stretches(chunk.elements, bool):
            indices = stretch.first + np.flatnonzero(stretch.results)
            out += [*picked(chunk, chunk.positions, indices, stretch.last), *failure_of(chunk, stretch)]
        return out


@dataclass(frozen=True, slots=True)
class TakeWhile(Stage):
    """The elements before the first for which a function gives something false."""

    function: Callable[..., Any]
    offload: ClassVar[Offload] = Offload.ALWAYS
    picks: ClassVar[bool] = True

    def start(self, key: str, state: int | None) -> Step:
        return _TakingWhile(self.function)


class _TakingWhile(Calling):
    def feed(self, chunk: Chunk) -> list[Chunk]:
        out = []
        for stretch in self._stretches(chunk.elements, wanted):
            indices = np.arange(stretch.first, stretch.last)
            out += picked(chunk, chunk.positions, indices, stretch.last)
            if isinstance(stretch.error, Enough):
                self.done = True
                self.failures.pop()
                break
            out += failure_of(chunk, stretch)
        return out


class Enough(Exception):  # noqa: N818
    """The element at which `take_while` ends."""


def wanted(verdict: Any) -> bool:
    """True; raises Enough for what is false."""
    if not verdict:
        raise Enough
    return True


def picked(chunk: Chunk, positions: Positions, indices: npt.NDArray[np.int64], seen: int) -> list[Chunk]:
    """The elements at these places of the first `seen`, in order; no chunk where there is none."""
    count = len(indices)
    if not count:
        return []
    if count == len(chunk.elements):
        return [Chunk(chunk.elements, positions, chunk.nbytes)]
    first, last = int(indices[0]), int(indices[-1]) + 1
    run = last - first == count
    elements = compacted(window(chunk.elements, first, last)) if run else select(chunk.elements, indices)
    return [Chunk.weighed(elements, IndexMap(positions, np.append(indices, seen)))]
