"""Windows: datasets of consecutive elements (`window`), or of one key (`group_by_window`).

Rules:
- A window is a dataset in memory (`Slices`), in columns. Several can run at once, any number of
  times.
- In `window`, as in tf.data, a tuple or dict becomes a tuple or dict of datasets; in
  `group_by_window` it stays an element.
- A step holds the elements that later windows need. A position is that of the next window's first
  element, so a resumed run reads held elements again. If that element has not come yet, the
  position says how many elements to skip.
- Stages do not import `Dataset`: they get a function that makes one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, ClassVar

import numpy as np

from streamrec.arguments import at_least_one, check_fields, check_flag, check_function
from streamrec.pipeline.elements.chunk import Chunk, weigh
from streamrec.pipeline.elements.columns import (
    Columns,
    compact,
    is_nest,
    join_windows,
    map_nest,
    map_nests,
    nest_of,
    select,
    window,
)
from streamrec.pipeline.elements.positions import Origin, OriginsOf, Position, Positions, with_state
from streamrec.pipeline.engine.description import name_of
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.bucket import Grouping
from streamrec.pipeline.stages.deferred_positions import GroupOrigins, InputChunks

MakeDataset = Callable[[Any, OriginsOf], Any]
"""Makes a dataset in memory from columns and the positions of what they were made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Stage):
    """Gives datasets of `size` elements; see `Dataset.window`."""

    size: int
    shift: int
    stride: int
    drop_remainder: bool
    dataset_of: MakeDataset = field(repr=False)
    offload: ClassVar[Offload] = Offload.LONG

    def __post_init__(self) -> None:
        check_fields(
            self,
            size=at_least_one,
            shift=at_least_one,
            stride=at_least_one,
            drop_remainder=check_flag,
        )

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
        if self._stage.drop_remainder:
            return 0
        return max(0, -(-(self._seen - self._next) // self._stage.shift))

    def flush(self) -> list[Chunk]:
        return self._make_windows(self._windows_left, ended=True)

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """Gives the elements held before a failure in smaller windows.

        The next window begins after it.
        """
        out = self._make_windows(self._windows_left, ended=False)
        self._next = self._seen = self._held = 0
        self._parts = []
        self._inputs = InputChunks()
        return [*out, chunk]

    def _make_windows(self, count: int, *, ended: bool) -> list[Chunk]:
        """Makes `count` windows of held elements.

        It drops the elements that no later window needs.
        """
        stage = self._stage
        first = self._next
        windows = []
        self._next += count * stage.shift
        origin = self._seen - self._held
        # Parts are joined only for windows, or to drop some: each chunk of a large window would
        # otherwise copy all that came before it.
        rows = join_windows(self._parts) if self._held and (count or self._next > origin) else None
        for at in range(first, self._next, stage.shift):
            ordinals = np.arange(at, min(at + stage.reach, self._seen), stage.stride)
            origins_of = GroupOrigins(self._inputs, ordinals)
            window_rows = select(rows, ordinals - origin)
            windows.append(make_window(window_rows, stage.dataset_of, origins_of))
        positions = WindowPositions(
            inputs=self._inputs,
            stage=self._key,
            first=first,
            shift=stage.shift,
            seen=self._seen,
            ended=ended,
        )
        if rows is not None:
            self._keep(rows, min(self._next, self._seen) - origin)
        if not windows:
            return []
        nests = [nest for nest, _ in windows]
        return [Chunk(nests, positions, sum(size for _, size in windows))]

    def _keep(self, rows: Any, first: int) -> None:
        """Drops the held elements before the given one."""
        self._held = len(rows) - first
        self._parts = [compact(window(rows, first, len(rows)))] if self._held else []
        # The last chunk is always kept: it has the position after all elements.
        needed = min(self._seen - self._held, self._seen - 1)
        low = max(0, bisect_right(self._inputs.firsts, needed) - 1)
        self._inputs = InputChunks(self._inputs.firsts[low:], self._inputs.positions[low:])


@dataclass(frozen=True, slots=True, kw_only=True)
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


def make_window(elements: Any, dataset_of: MakeDataset, origins_of: OriginsOf) -> tuple[Any, int]:
    """A nest of datasets of these elements, and the bytes that they hold."""
    nest = map_nest(lambda column: dataset_of(column, origins_of), columns_of(elements))
    return nest, weigh(elements)


def columns_of(elements: Any) -> Any:
    """A nest of columns, of elements that may be in a list."""
    if isinstance(elements, Columns):
        return map_nest(columns_of, elements.nest)
    if isinstance(elements, list) and is_nest(elements[0]):
        return map_nests(lambda values: values, list(elements))
    return elements


@dataclass(frozen=True, slots=True)
class GroupByWindow(Stage):
    """Gives pairs of a key and a dataset of `size` elements with that key.

    See `Dataset.group_by_window`.
    """

    key_func: Callable[..., Any]
    size: int | Callable[[Any], Any]
    dataset_of: MakeDataset
    offload: ClassVar[Offload] = Offload.ALWAYS

    def __post_init__(self) -> None:
        check_function("key_func", self.key_func)

    def __repr__(self) -> str:
        # Saved positions compare this text, so functions appear by their names.
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
        """The group of a key; a new key's window size is asked for once, when the key first comes.

        Raises a ValueError if the user's function returns a size below 1.
        """
        key = index(result)
        if key not in self._numbers:
            size = index(self._size(np.int64(key))) if callable(self._size) else self._size
            if size < 1:
                raise ValueError(
                    f"window_size_func returned {size} for key {key}: a window has at least 1 "
                    "element"
                )
            self._numbers[key] = len(self._keys)
            self._keys.append(key)
            self.batch_sizes.append(size)
        return self._numbers[key]

    def sort_key(self, group: int) -> int:
        """Orders what remains by key, from the smallest on."""
        return self._keys[group]

    def batch(self, group: int, elements: Any, origins_of: OriginsOf) -> Any:
        """The pair that the stage gives: the group's key, int64, and a dataset of its elements."""
        return np.int64(self._keys[group]), self._dataset_of(nest_of(elements), origins_of)
