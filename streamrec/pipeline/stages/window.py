"""Windows: datasets of consecutive elements (`window`), or of elements with one key (`group_by_window`).

Rules:
- A window is a dataset in memory (`Slices`), in columns. Several can run at once, any number of times.
- In `window`, as in tf.data, a tuple or dict becomes a tuple or dict of datasets; in `group_by_window` it stays an
  element.
- A step holds the elements that later windows need. A position is that of the next window's first element, so a resumed
  run reads held elements again. If that element has not come yet, the position says how many elements to skip.
- Stages do not import `Dataset`: they get a function that makes one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import index
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from streamrec.pipeline.elements.chunk import Chunk, weigh
from streamrec.pipeline.elements.columns import (
    Columns,
    compact,
    is_nest,
    join_windows,
    leaves,
    map_nest,
    map_nests,
    select,
    window,
)
from streamrec.pipeline.elements.positions import Origin, Position, Positions, with_state
from streamrec.pipeline.engine.description import name_of
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.bucket import Grouping
from streamrec.pipeline.stages.deferred_positions import GroupOrigins, InputChunks
from streamrec.tfrecord import Frames

MakeDataset = Callable[[Any, Positions], Any]
"""Makes a dataset in memory from columns and the positions of what they were made of."""


@dataclass(frozen=True, slots=True)
class Window(Stage):
    """Gives datasets of `size` elements; see `Dataset.window`."""

    size: int
    shift: int
    stride: int
    drop_remainder: bool
    dataset_of: MakeDataset = field(repr=False)
    offload: ClassVar[Offload] = Offload.LONG

    @property
    def reach(self) -> int:
        """The number of elements from a window's first to its last."""
        return (self.size - 1) * self.stride + 1

    def cardinality(self, count: int) -> int:
        last = self.reach if self.drop_remainder else 1
        return count if count < 0 else max(0, (count - last) // self.shift + 1)

    def start(self, key: str, state: int | None) -> Step:
        return _Windowing(self, key, state or 0)


class _Windowing(Step):
    def __init__(self, stage: Window, key: str, skipped: int) -> None:
        super().__init__()
        self._stage = stage
        self._key = key
        self._next = skipped  # the ordinal of the next window's first element
        self._seen = 0
        self._parts: list[Any] = []  # the elements that are held: the last ones seen
        self._held = 0
        self._inputs = InputChunks()

    def feed(self, chunk: Chunk) -> list[Chunk]:
        count = len(chunk.elements)
        self._inputs = self._inputs.append(self._seen, chunk.positions)
        self._parts.append(chunk.elements)
        self._held += count
        self._seen += count
        complete = max(0, (self._seen - self._next - self._stage.reach) // self._stage.shift + 1)
        return self._make_windows(complete, ended=False)

    @property
    def _windows_left(self) -> int:
        """The number of windows that begin among the held elements; some are smaller."""
        return 0 if self._stage.drop_remainder else max(0, -(-(self._seen - self._next) // self._stage.shift))

    def flush(self) -> list[Chunk]:
        return self._make_windows(self._windows_left, ended=True)

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """Gives the elements held before a failure in smaller windows; the next window begins after it."""
        out = self._make_windows(self._windows_left, ended=False)
        self._next = self._seen = self._held = 0
        self._parts, self._inputs = [], InputChunks()
        return [*out, chunk]

    def _make_windows(self, count: int, *, ended: bool) -> list[Chunk]:
        """Makes `count` windows of held elements, and drops the elements that no later window needs."""
        stage, first, windows = self._stage, self._next, []
        self._next += count * stage.shift
        drops = self._next > self._seen - self._held
        if count or drops:
            self._parts = [join_windows([*parts]) for _, parts in groupby(self._parts, container_of)]
        for at in range(first, self._next, stage.shift):
            ordinals = np.arange(at, min(at + stage.reach, self._seen), stage.stride)
            origins = GroupOrigins(self._inputs, ordinals)
            windows.append(make_window(self._select(ordinals), stage.dataset_of, origins))
        positions = WindowPositions(self._inputs, self._key, first, stage.shift, self._seen, ended)
        if drops and self._held:
            self._keep(min(self._next, self._seen))
        return [Chunk([nest for nest, _ in windows], positions, sum(size for _, size in windows))] if windows else []

    def _select(self, ordinals: npt.NDArray[np.int64]) -> Any:
        """The held elements with these ordinals. Their container must not depend on where chunks end, since a resumed
        run has other chunks; so elements of different containers are joined only in windows that have both.
        """
        first, end = int(ordinals[0]), int(ordinals[-1]) + 1
        parts = []
        origin = self._seen - self._held
        for part in self._parts:
            after = origin + len(part)
            if origin <= first and end <= after:
                return select(part, ordinals - origin)
            if first < after and origin < end:
                parts.append(window(part, max(0, first - origin), min(len(part), end - origin)))
            origin = after
        return select(join_windows(parts), ordinals - first)

    def _keep(self, first: int) -> None:
        """Drops the held elements before the ordinal `first`."""
        parts, origin = [], self._seen - self._held
        for part in self._parts:
            if origin + len(part) > first:
                parts.append(compact(window(part, max(0, first - origin), len(part))))
            origin += len(part)
        self._parts, self._held = parts, self._seen - first
        needed = min(first, self._seen - 1)  # the last chunk has the position after all elements
        low = max(0, bisect_right(self._inputs.firsts, needed) - 1)
        self._inputs = InputChunks(self._inputs.firsts[low:], self._inputs.positions[low:])


def container_of(elements: Any) -> Any:
    """What elements must have in common to be joined without a change of their container."""
    if isinstance(elements, Columns):
        return [container_of(column) for column in leaves(elements.nest)]
    if isinstance(elements, np.ndarray):
        return elements.dtype, elements.shape[1:]
    return Frames if isinstance(elements, Frames) else type(elements)


@dataclass(frozen=True, slots=True)
class WindowPositions(Positions):
    """Positions of windows; the first one begins with the element of ordinal `first`."""

    inputs: InputChunks
    stage: str
    first: int
    shift: int
    seen: int
    ended: bool

    def at(self, index: int) -> Position:
        start = self.first + index * self.shift
        if start < self.seen:
            return self.inputs.at(start)
        position = with_state(self.inputs.at(self.seen), self.stage, start - self.seen)
        return {**position, "ended": True} if self.ended else position

    def origins(self, index: int, row: int) -> Sequence[Origin]:
        return (self.inputs.origin(self.first + index * self.shift),)


def make_window(elements: Any, dataset_of: MakeDataset, origin: Positions) -> tuple[Any, int]:
    """A nest of datasets of these elements, and the bytes that they hold."""
    if isinstance(elements, Columns):
        nest = map_nest(lambda column: column, elements.nest)
    elif not isinstance(elements, Frames) and is_nest(elements[0]):
        nest = map_nests(lambda values: values, list(elements))
    else:
        nest = elements
    return map_nest(lambda column: dataset_of(column, origin), nest), weigh(elements)


@dataclass(frozen=True, slots=True)
class GroupByWindow(Stage):
    """Gives pairs of a key and a dataset of `size` elements with that key; see `Dataset.group_by_window`."""

    key_func: Callable[..., Any]
    size: int | Callable[[Any], Any]
    dataset_of: MakeDataset
    offload: ClassVar[Offload] = Offload.ALWAYS

    def __repr__(self) -> str:  # saved positions compare this text, so functions appear by their names
        size = name_of(self.size) if callable(self.size) else self.size
        return f"GroupByWindow({name_of(self.key_func)}, {size})"

    def start(self, key: str, state: Mapping[str, Any] | None) -> Step:
        return Grouping(self.key_func, KeyedGroups(self.size, self.dataset_of), False, key, state)


class KeyedGroups:
    """A group for each key seen."""

    def __init__(self, size: int | Callable[[Any], Any], dataset_of: MakeDataset) -> None:
        self.batch_sizes: list[int] = []
        self._size = size
        self._dataset_of = dataset_of
        self._keys: list[int] = []
        self._numbers: dict[int, int] = {}

    def group_of(self, result: Any) -> int:
        key = index(result)
        if key not in self._numbers:
            size = index(self._size(np.int64(key))) if callable(self._size) else self._size
            if size < 1:
                raise ValueError(f"window_size_func returned {size} for key {key}: a window has at least 1 element")
            self._numbers[key] = len(self._keys)
            self._keys.append(key)
            self.batch_sizes.append(size)
        return self._numbers[key]

    def sort_key(self, group: int) -> int:
        return self._keys[group]

    def batch(self, group: int, elements: Any, origin: Positions) -> Any:
        data = elements.nest if isinstance(elements, Columns) else elements
        return np.int64(self._keys[group]), self._dataset_of(data, origin)
