"""Windows: elements that follow each other, as a dataset of their own; and those of one key (`group_by_window`).

Rules:
- A window is a dataset in memory (`Slices`), in columns: several can run at once, any number of times.
- A tuple or dict becomes a tuple or dict of datasets in `window`, as in tf.data, and stays an element in
  `group_by_window`.
- What the next windows need is held. A position is that of the first element of the next window, so that a resumed run
  reads again what was held; where that element did not come yet, it says how many are passed over.
- Stages do not know `Dataset`: they are given what makes one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, ClassVar

import numpy as np

from streamrec.pipeline.elements.chunk import Chunk, weigh
from streamrec.pipeline.elements.columns import (
    Columns,
    compact,
    is_nest,
    join_windows,
    map_nest,
    map_nests,
    select,
    window,
)
from streamrec.pipeline.elements.positions import Position, Positions, Precursor, with_state
from streamrec.pipeline.engine.description import name_of
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.bucket import Grouping
from streamrec.pipeline.stages.deferred_positions import Origins, WaitedElements
from streamrec.tfrecord import Frames

__all__ = ["GroupByWindow", "Window"]

MakeDataset = Callable[[Any, Positions], Any]
"""Makes a dataset in memory of columns, which know what they were made of."""


@dataclass(frozen=True, slots=True)
class Window(Stage):
    """Datasets of `size` elements; see `Dataset.window`."""

    size: int
    shift: int
    stride: int
    drop_remainder: bool
    dataset_of: MakeDataset = field(repr=False)
    offload: ClassVar[Offload] = Offload.LONG

    @property
    def reach(self) -> int:
        """How many elements a window spans, from its first to its last."""
        return (self.size - 1) * self.stride + 1

    def cardinality(self, count: int) -> int:
        last = self.reach if self.drop_remainder else 1
        return count if count < 0 else max(0, (count - last) // self.shift + 1)

    def start(self, key: str, state: int | None) -> Step:
        return _Windowing(self, key, state or 0)


class _Windowing(Step):
    def __init__(self, stage: Window, key: str, passed: int) -> None:
        super().__init__()
        self._stage = stage
        self._key = key
        self._next = passed  # the ordinal of the next window's first element
        self._seen = 0
        self._parts: list[Any] = []  # the last elements that came
        self._held = 0
        self._places = Origins()

    def feed(self, chunk: Chunk) -> list[Chunk]:
        count = len(chunk.elements)
        self._places = self._places.then(self._seen, chunk.positions)
        self._parts.append(chunk.elements)
        self._held += count
        self._seen += count
        whole = max(0, (self._seen - self._next - self._stage.reach) // self._stage.shift + 1)
        return self._windows(whole, ended=False)

    @property
    def _windows_left(self) -> int:
        """How many windows begin among what is held, the last of them smaller."""
        return 0 if self._stage.drop_remainder else max(0, -(-(self._seen - self._next) // self._stage.shift))

    def flush(self) -> list[Chunk]:
        return self._windows(self._windows_left, ended=True)

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """What is held when an element failed comes in smaller windows; others begin after it."""
        out = self._windows(self._windows_left, ended=False)
        self._next = self._seen = self._held = 0
        self._parts, self._places = [], Origins()
        return [*out, chunk]

    def _windows(self, count: int, *, ended: bool) -> list[Chunk]:
        """`count` windows that begin among the elements held; then drops the elements that no window needs."""
        stage, first, made = self._stage, self._next, []
        self._next += count * stage.shift
        origin = self._seen - self._held
        rows = join_windows(self._parts) if self._held and (count or self._next > origin) else None
        for at in range(first, self._next, stage.shift):
            wanted = np.arange(at, min(at + stage.reach, self._seen), stage.stride)
            made_of = WaitedElements(self._places, wanted)
            made.append(stage_window(select(rows, wanted - origin), stage.dataset_of, made_of))
        positions = WindowPositions(self._places, self._key, first, stage.shift, self._seen, ended)
        if rows is not None:
            self._keep(rows, min(self._next, self._seen) - origin)
        return [Chunk([nest for nest, _ in made], positions, sum(held for _, held in made))] if made else []

    def _keep(self, rows: Any, first: int) -> None:
        """Holds elements from the given one on."""
        self._held = len(rows) - first
        self._parts = [compact(window(rows, first, len(rows)))] if self._held else []
        needed = min(self._seen - self._held, self._seen - 1)  # the last chunk has the place after all
        low = max(0, bisect_right(self._places.firsts, needed) - 1)
        self._places = Origins(self._places.firsts[low:], self._places.positions[low:])


@dataclass(frozen=True, slots=True)
class WindowPositions(Positions):
    """Positions of windows, of which the first begins with the element of ordinal `first`."""

    places: Origins
    stage: str
    first: int
    shift: int
    seen: int
    ended: bool

    def at(self, index: int) -> Position:
        start = self.first + index * self.shift
        if start < self.seen:
            return self.places.at(start)
        found = with_state(self.places.at(self.seen), self.stage, start - self.seen)
        return {**found, "ended": True} if self.ended else found

    def precursors(self, index: int, row: int) -> Sequence[Precursor]:
        """The first element of a window."""
        return (self.places.precursor(self.first + index * self.shift),)


def stage_window(elements: Any, dataset_of: MakeDataset, origin: Positions) -> tuple[Any, int]:
    """A window of elements, as a nest of datasets, and the bytes that they hold."""
    if isinstance(elements, Columns):
        nest = map_nest(lambda column: column, elements.nest)
    elif not isinstance(elements, Frames) and is_nest(elements[0]):
        nest = map_nests(lambda values: values, list(elements))
    else:
        nest = elements
    return map_nest(lambda column: dataset_of(column, origin), nest), weigh(elements)


@dataclass(frozen=True, slots=True)
class GroupByWindow(Stage):
    """Pairs of a key and the dataset of that many elements of that key; see `Dataset.group_by_window`."""

    key_func: Callable[..., Any]
    size: int | Callable[[Any], Any]
    dataset_of: MakeDataset
    offload: ClassVar[Offload] = Offload.ALWAYS

    def __repr__(self) -> str:
        """As in positions: functions differ from run to run but for their names."""
        size = name_of(self.size) if callable(self.size) else self.size
        return f"GroupByWindow({name_of(self.key_func)}, {size})"

    def start(self, key: str, state: Mapping[str, Any] | None) -> Step:
        return Grouping(self.key_func, KeyedGroups(self.size, self.dataset_of), False, key, state)


class KeyedGroups:
    """A group for each key that has come."""

    def __init__(self, size: int | Callable[[Any], Any], dataset_of: MakeDataset) -> None:
        self.sizes: list[int] = []
        self._size = size
        self._dataset_of = dataset_of
        self._keys: list[int] = []
        self._numbers: dict[int, int] = {}

    def number(self, found: Any) -> int:
        """The number of a key's group."""
        key = index(found)
        if key not in self._numbers:
            size = index(self._size(np.int64(key))) if callable(self._size) else self._size
            if size < 1:
                raise ValueError(f"window_size_func gave {size} for the key {key}: a window has 1 element or more")
            self._numbers[key] = len(self._keys)
            self._keys.append(key)
            self.sizes.append(size)
        return self._numbers[key]

    def order(self, group: int) -> int:
        """The smallest keys come first."""
        return self._keys[group]

    def batch(self, group: int, elements: Any, origin: Positions) -> Any:
        """A key, and the dataset of its elements."""
        data = elements.nest if isinstance(elements, Columns) else elements
        return np.int64(self._keys[group]), self._dataset_of(data, origin)
