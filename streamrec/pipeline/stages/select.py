"""Stages that pick elements (take, skip, shard, filter, take_while, unique, ...), and enumerate.

Frames stay Frames. Positions of stages that count hold the number of elements seen; those of
`unique` hold digests.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from streamrec.arguments import (
    at_least_one,
    check_fields,
    check_flag,
    check_function,
    check_integer,
    check_named,
    whole_or_all,
)
from streamrec.display import logger, warn_once
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.codec import digest_values
from streamrec.pipeline.elements.columns import Columns, compact, nest_of, select, window
from streamrec.pipeline.elements.positions import IndexMap, Positions, with_stage_state
from streamrec.pipeline.elements.specs import TensorSpec
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.calling import Calling, Results

DIGEST_BYTES: Final = 16


class Counted(Stage):
    """A stage whose result depends on the number of elements before each.

    Positions hold that number.
    """

    __slots__ = ()
    counts_failures: ClassVar[bool] = False

    def start(self, key: str, state: int | None) -> Step:
        return _Counting(self, key, state or 0)

    def is_done(self, seen: int) -> bool:
        """Whether the stage needs no more elements after `seen` ones."""
        return False

    def apply(self, chunk: Chunk, seen: int) -> list[Chunk]:
        """The output for a chunk that comes after `seen` elements."""
        raise NotImplementedError

    def finish(self, seen: int) -> None:
        """Called when the input has ended."""


class _Counting(Step):
    def __init__(self, stage: Counted, key: str, seen: int) -> None:
        super().__init__()
        self._stage = stage
        self._key = key
        self._seen = seen
        self.done = stage.is_done(seen)

    def feed(self, chunk: Chunk) -> list[Chunk]:
        seen = self._seen
        positions = with_stage_state(chunk.positions, self._key, lambda index: seen + index)
        self._seen += len(chunk.elements)
        self.done = self._stage.is_done(self._seen)
        return self._stage.apply(Chunk(chunk.elements, positions, chunk.nbytes), seen)

    def fail(self, chunk: Chunk) -> list[Chunk]:
        seen = self._seen = self._seen + self._stage.counts_failures
        return [
            replace(
                chunk,
                positions=with_stage_state(chunk.positions, self._key, lambda index: seen + index),
            )
        ]

    def flush(self) -> list[Chunk]:
        self._stage.finish(self._seen)
        return []


@dataclass(frozen=True, slots=True)
class Take(Counted):
    """Gives the first `count` elements; with -1 all of them, as in tf.data."""

    count: int
    picks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, count=whole_or_all)

    @property
    def ends(self) -> bool:
        return self.count >= 0

    def cardinality(self, count: int) -> int:
        if self.count < 0 or count == 0:
            return count
        if count == -1 or self.count == 0:  # of an infinite number
            return self.count
        return count if count < 0 else min(self.count, count)

    def is_done(self, seen: int) -> bool:
        return 0 <= self.count <= seen

    def apply(self, chunk: Chunk, seen: int) -> list[Chunk]:
        count = len(chunk.elements)
        left = count if self.count < 0 else min(count, self.count - seen)
        if not left:
            return []
        return [
            chunk if left == count else replace(chunk, elements=window(chunk.elements, 0, left))
        ]


@dataclass(frozen=True, slots=True)
class Skip(Counted):
    """Gives all but the first `count` elements; with -1 none, as in tf.data."""

    count: int
    picks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, count=whole_or_all)

    @property
    def ends(self) -> bool:
        return self.count < 0

    def cardinality(self, count: int) -> int:
        if self.count < 0:
            return 0
        return count if count < 0 else max(0, count - self.count)

    def is_done(self, seen: int) -> bool:
        return self.count < 0

    def apply(self, chunk: Chunk, seen: int) -> list[Chunk]:
        count = len(chunk.elements)
        first = min(count, max(0, self.count - seen))
        return select_chunk(chunk, np.arange(first, count), count) if first else [chunk]


@dataclass(frozen=True, slots=True)
class Shard(Counted):
    """Gives each element whose number modulo `num_shards` is `index`."""

    num_shards: int
    index: int
    picks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, num_shards=at_least_one, index=partial(check_integer, least=0))
        if not 0 <= self.index < self.num_shards:
            raise ValueError(
                f"index={self.index} must be at least 0 and less than num_shards={self.num_shards}"
            )

    def cardinality(self, count: int) -> int:
        return count if count < 0 else len(range(self.index, count, self.num_shards))

    def apply(self, chunk: Chunk, seen: int) -> list[Chunk]:
        count = len(chunk.elements)
        first = (self.index - seen) % self.num_shards
        return select_chunk(chunk, np.arange(first, count, self.num_shards), count)

    def finish(self, seen: int) -> None:
        if 0 < seen <= self.index:
            warn_once(
                f"shard({self.num_shards}, {self.index}) gives no elements: its input has only "
                f"{seen:,}. In distributed training the other ranks wait for this one. Use fewer "
                "shards, or give shard() more elements: records instead of file names, or repeat()"
            )


@dataclass(frozen=True, slots=True)
class Enumerate(Counted):
    """Pairs each element with its number, an int64, from `first` on."""

    first: int = 0
    counts_failures: ClassVar[bool] = True  # as in tf.data

    def __post_init__(self) -> None:
        check_fields(self, first=check_named("start", check_integer))

    def cardinality(self, count: int) -> int:
        return count

    def element_spec(self, spec: Any) -> Any:
        return TensorSpec((), np.int64), spec

    def apply(self, chunk: Chunk, seen: int) -> list[Chunk]:
        first = self.first + seen
        numbers = np.arange(first, first + len(chunk.elements), dtype=np.int64)
        return [
            Chunk(
                Columns((numbers, nest_of(chunk.elements))),
                chunk.positions,
                chunk.nbytes + numbers.nbytes,
            )
        ]


@dataclass(frozen=True, slots=True)
class Filter(Stage):
    """Gives the elements for which a function returns a true value."""

    function: Callable[..., Any]
    offload: ClassVar[Offload] = Offload.ALWAYS
    picks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_function("predicate", self.function)

    def start(self, key: str, state: int | None) -> Step:
        return _Filtering(self.function, bool)


class _Filtering(Calling):
    def _give(self, chunk: Chunk, results: Results) -> list[Chunk]:
        return select_chunk(chunk, results.first + np.flatnonzero(results.results), results.last)


@dataclass(frozen=True, slots=True)
class TakeWhile(Stage):
    """Gives the elements before the first one for which a function returns a false value."""

    function: Callable[..., Any]
    offload: ClassVar[Offload] = Offload.ALWAYS
    picks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_function("predicate", self.function)

    @property
    def ends(self) -> bool:
        return True

    def start(self, key: str, state: int | None) -> Step:
        return _TakingWhile(self.function, check_true)


class _TakingWhile(Calling):
    def feed(self, chunk: Chunk) -> list[Chunk]:
        out = []
        for results in self._call(chunk.elements):
            out += select_chunk(chunk, np.arange(results.first, results.last), results.last)
            if isinstance(results.error, Enough):
                self.done = True
                self.failures.pop()
                break
            if results.error is not None:
                out.append(Chunk.failure(results.error, chunk.positions, results.last + 1))
        return out


class Enough(Exception):  # noqa: N818
    """The element at which `take_while` ends."""


def check_true(result: Any) -> bool:
    """Raises `Enough` for a false result, which ends the calls for a chunk at its element."""
    if not result:
        raise Enough
    return True


@dataclass(frozen=True, slots=True)
class IgnoreErrors(Stage):
    """Leaves out elements that failed in earlier stages, and optionally logs them.

    The run's statistics count them.
    """

    log_warning: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self, log_warning=check_flag)

    def start(self, key: str, state: None) -> Step:
        return _Ignoring(self.log_warning)


class _Ignoring(Step):
    def __init__(self, log_warning: bool) -> None:
        super().__init__()
        self._log_warning = log_warning

    def feed(self, chunk: Chunk) -> list[Chunk]:
        return [chunk]

    def fail(self, chunk: Chunk) -> list[Chunk]:
        error = chunk.error
        if self._log_warning and error is not None:
            places = "; ".join(getattr(error, "__notes__", ())) or "its place is not known"
            logger.warning(
                "an element is left out: %s: %s (%s)", type(error).__name__, error, places
            )
        return []


@dataclass(frozen=True, slots=True)
class Unique(Stage):
    """Gives each element once, where it comes first.

    The run and its positions hold a digest of 16 bytes for each distinct element, so states grow
    with their number.
    """

    offload: ClassVar[Offload] = Offload.LONG

    def element_spec(self, spec: Any) -> Any:
        return spec

    def start(self, key: str, state: str | None) -> Step:
        return _Unique(key, b64decode(state or ""))


class _Unique(Step):
    def __init__(self, key: str, seen: bytes) -> None:
        super().__init__()
        self._key = key
        self._seen = {seen[at : at + DIGEST_BYTES] for at in range(0, len(seen), DIGEST_BYTES)}
        self._in_order = bytearray(seen)  # only grows: a position refers to a prefix

    def feed(self, chunk: Chunk) -> list[Chunk]:
        before = len(self._seen)
        new = [
            index
            for index in find_candidates(chunk.elements)
            if self._is_new(chunk.elements[index])
        ]
        indices = np.array(new, np.int64)
        positions = self._positions(chunk, before, indices)
        return select_chunk(chunk.at(positions), indices, len(chunk.elements))

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """A failure does not count as seen."""
        return [
            replace(
                chunk, positions=self._positions(chunk, len(self._seen), np.array([], np.int64))
            )
        ]

    def _positions(self, chunk: Chunk, before: int, indices: npt.NDArray[np.int64]) -> Positions:
        """Positions with the digests of elements given so far.

        These are the `before` elements given earlier, and those at `indices` of the chunk.
        """

        def digests(index: int) -> str:
            count = before + int(np.searchsorted(indices, index))
            return b64encode(bytes(self._in_order[: count * DIGEST_BYTES])).decode()

        return with_stage_state(chunk.positions, self._key, digests)

    def _is_new(self, element: Any) -> bool:
        digest = bytes.fromhex(digest_values(element))
        if digest in self._seen:
            return False
        self._seen.add(digest)
        self._in_order += digest
        return True


def find_candidates(elements: Any) -> list[int]:
    """The indices of elements that may be new: in a column of numbers, the first of each number."""
    column = elements.nest if isinstance(elements, Columns) else None
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind != "O":
        return sorted(np.unique(column, return_index=True)[1].tolist())
    return list(range(len(elements)))


def select_chunk(chunk: Chunk, indices: npt.NDArray[np.int64], seen: int) -> list[Chunk]:
    """A list of one chunk with the elements at sorted indices, or an empty list without indices.

    Indices from `seen` on are left out.
    """
    count = len(indices)
    if not count:
        return []
    if count == len(chunk.elements):
        return [chunk]
    first = int(indices[0])
    last = int(indices[-1]) + 1
    adjacent = last - first == count
    elements = (
        compact(window(chunk.elements, first, last))
        if adjacent
        else select(chunk.elements, indices)
    )
    return [Chunk.weigh(elements, IndexMap(chunk.positions, np.append(indices, seen)))]
