"""Buckets: batches of elements of similar length, as tf.data's `bucket_by_sequence_length`.

Rules:
- Elements wait in the bucket of their length. A bucket that reaches its batch size becomes a batch
  at once. When the input ends, the waiting elements become smaller batches, the shortest lengths
  first.
- A position says which elements wait (`deferred_positions.py`). A resumed step gets these again,
  and skips those between them.
- Waiting elements are columns; records stay Frames.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np

from streamrec.arguments import (
    at_least_one,
    check_each,
    check_fields,
    check_flag,
    check_function,
    check_integer,
    check_named,
)
from streamrec.pipeline.elements.chunk import Chunk, Elements
from streamrec.pipeline.elements.columns import as_array, is_nest, join_windows, select, window
from streamrec.pipeline.elements.positions import OriginsOf, shift
from streamrec.pipeline.engine.description import name_of
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.batch import chunk_of, make_batch
from streamrec.pipeline.stages.calling import Calling
from streamrec.pipeline.stages.deferred_positions import (
    NONE,
    DeferredPositions,
    GroupOrigins,
    InputChunks,
    Ordinals,
)
from streamrec.pipeline.stages.padding import Padding

DELIVERED = -1
"""The bucket of an element that was part of a batch before the run was resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket(Stage):
    """Joins elements of similar length; see `Dataset.bucket_by_sequence_length`.

    `padding=None` stacks them.
    """

    length_of: Callable[..., Any]
    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    padding: Padding | None = Padding()
    pad_to_bucket_boundary: bool = False
    drop_remainder: bool = False
    offload: ClassVar[Offload] = Offload.ALWAYS

    def __post_init__(self) -> None:
        check_fields(
            self,
            boundaries=check_named("bucket_boundaries", check_each(check_integer)),
            batch_sizes=check_named("bucket_batch_sizes", check_each(at_least_one)),
            length_of=check_named("element_length_func", check_function),
            drop_remainder=check_flag,
            pad_to_bucket_boundary=check_flag,
        )
        if len(self.batch_sizes) != len(self.boundaries) + 1:
            raise ValueError(
                f"{len(self.batch_sizes)} bucket_batch_sizes for {len(self.boundaries)} "
                "bucket_boundaries: pass one batch size more than boundaries; the last is for "
                "elements longer than all boundaries"
            )
        if any(last <= first for first, last in pairwise(self.boundaries)):
            raise ValueError(f"bucket_boundaries={list(self.boundaries)} must increase")

    def __repr__(self) -> str:
        # Saved positions compare this text, so functions appear by their names.
        padding = f"{self.padding}, pad_to_bucket_boundary={self.pad_to_bucket_boundary}"
        sizes = f"{list(self.boundaries)}, {list(self.batch_sizes)}"
        return (
            f"Bucket({name_of(self.length_of)}, {sizes}, {padding}, "
            f"drop_remainder={self.drop_remainder})"
        )

    def start(self, key: str, state: Mapping[str, Any] | None) -> Step:
        return Grouping(self.length_of, self, self.drop_remainder, key, state)

    def group_of(self, result: Any) -> int:
        """The bucket of an element of length `result`; boundaries are the least lengths."""
        return bisect_right(self.boundaries, int(result))

    def sort_key(self, group: int) -> int:
        """Orders what remains by length, from the shortest on."""
        return group

    def batch(self, group: int, elements: Any, origins_of: OriginsOf) -> Any:
        """A batch of a bucket's elements, padded or stacked.

        Raises a ValueError for elements without an upper boundary if they are padded to it.
        """
        if self.padding is None:
            return make_batch(elements)
        if not self.pad_to_bucket_boundary:
            return self.padding.batch(elements)
        if group == len(self.boundaries):
            raise ValueError(
                "pad_to_bucket_boundary=True, but an element is as long as the last of "
                f"bucket_boundaries={list(self.boundaries)} or longer: filter such elements, or "
                "add a boundary"
            )
        shapes = bound_shapes(elements[0], self.padding.shapes, self.boundaries[group] - 1)
        return replace(self.padding, shapes=shapes).batch(elements)


def bound_shapes(element: Any, shapes: Any, length: int) -> Any:
    """Shapes with `length` for each unknown size.

    Without shapes, the first dimension of each array gets it.
    """
    if is_nest(element):
        keys = list(element) if isinstance(element, dict) else range(len(element))
        parts = {
            key: bound_shapes(element[key], None if shapes is None else shapes[key], length)
            for key in keys
        }
        return parts if isinstance(element, dict) else tuple(parts.values())
    if shapes is not None:
        return [length if size in (None, -1) else size for size in shapes]
    dimensions = as_array(element).ndim
    return [length, *[None] * (dimensions - 1)] if dimensions else []


class Groups(Protocol):
    """Assigns elements to groups, which are numbered from 0."""

    @property
    def batch_sizes(self) -> Sequence[int]:
        """The number of elements in a batch, for each known group."""

    def group_of(self, result: Any) -> int:
        """The group of an element for which the user's function returned `result`."""

    def sort_key(self, group: int) -> int:
        """Orders the groups whose elements still wait when the input ends."""

    def batch(self, group: int, elements: Any, origins_of: OriginsOf) -> Any:
        """Makes a batch of elements of one group; `origin` says what they were made of."""


class WaitingElements:
    """The elements that wait in one bucket, and their ordinals."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self.ordinals = NONE

    def add(self, elements: Any, ordinals: Ordinals) -> None:
        """Adds a container of elements, kept as it is until `release` joins them."""
        self._parts.append(elements)
        self.ordinals = np.concatenate([self.ordinals, ordinals])

    def release(self) -> Any:
        """Removes and returns all elements."""
        parts = self._parts
        self._parts = []
        self.ordinals = NONE
        return join_windows(parts)


class Grouping(Calling):
    """A step that makes a batch of each group of elements as soon as it is full.

    `groups` assigns an element to a group by the function's result. Without `drop_remainder`, the
    rest becomes smaller batches.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        groups: Groups,
        drop_remainder: bool,
        key: str,
        state: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(function, groups.group_of)
        self._groups = groups
        self._drop_remainder = drop_remainder
        self._key = key
        self._buckets: list[WaitingElements] = []
        self._inputs = InputChunks()
        self._seen = 0
        self._span: int = state["span"] if state else 0
        self._resumed: Ordinals = np.cumsum(state["waiting"], dtype=np.int64) if state else NONE

    def feed(self, chunk: Chunk) -> list[Chunk]:
        out = []
        first = 0
        count = len(chunk.elements)
        new = self._new_indices(count)
        # A resumed run reads elements again that were in a batch before; the function is called
        # only for the others, so results are numbered among `new` and must be led back to the
        # chunk.
        elements: Elements = ()
        if len(new):
            elements = chunk.elements if len(new) == count else select(chunk.elements, new)
        for results in self._call(elements):
            last = count
            if results.error is not None:
                last = int(new[results.last])
                self.failures[-1] = (results.error, last)
            rest = chunk
            if first:
                rest = Chunk(window(chunk.elements, first, count), shift(chunk.positions, first), 0)
            ids = np.full(last - first, DELIVERED, np.int64)
            ids[new[results.first : results.last] - first] = results.results
            out += self._fill(rest, ids, first)
            if results.error is not None:
                out += self.fail(Chunk.failure(results.error, chunk.positions, last + 1))
            first = last + 1
        return out

    def _new_indices(self, count: int) -> Ordinals:
        """The indices of those of the next `count` elements that are in no batch yet.

        Within the span of a resumed position, only the elements that waited are in none.
        """
        passed = min(max(self._span - self._seen, 0), count)
        if not passed:
            return np.arange(count)
        ordinals = self._resumed - self._seen
        again = ordinals[(ordinals >= 0) & (ordinals < count)]
        return np.concatenate([again, np.arange(passed, count)])

    def _fill(self, chunk: Chunk, ids: Ordinals, first: int) -> list[Chunk]:
        """Adds elements to their groups and gives full groups.

        The chunk begins at element `first` of the input.
        """
        self._buckets += [WaitingElements() for _ in self._groups.batch_sizes[len(self._buckets) :]]
        self._inputs = self._inputs.append(self._seen, chunk.positions)
        events = self._find_full(ids)
        # A resumed run has already seen the span of its position: the first batch's position must
        # not ask for those elements again.
        passed = min(max(self._span - self._seen, 0), len(ids))
        ends = [
            self._seen + end for end in (passed, *(int(indices[-1]) + 1 for _, indices in events))
        ]
        waiting = [
            *(bucket.ordinals for bucket in self._buckets),
            self._seen + np.flatnonzero(ids != DELIVERED),
        ]

        # A generator, since a bucket may fill twice in one chunk: each batch leaves before the next
        # elements of its bucket come.
        def fill() -> Iterator[tuple[int, int]]:
            for bucket, indices in events:
                self._buckets[bucket].add(select(chunk.elements, indices), indices + self._seen)
                yield bucket, first + int(indices[-1])

        out = self._batches(fill(), self._positions(waiting, ends, ended=False))
        self._keep(chunk.elements, ids, events)
        self._seen += len(ids)
        self._inputs = self._inputs.keep(
            np.concatenate([NONE, *(bucket.ordinals for bucket in self._buckets)])
        )
        return out

    def _batches(
        self, full: Iterable[tuple[int, int | None]], positions: DeferredPositions
    ) -> list[Chunk]:
        """Makes batches of full buckets.

        With each bucket comes the index of the element that filled it, or None.
        """
        out: list[Chunk] = []
        batches: list[Any] = []
        for number, (bucket, index) in enumerate(full):
            waiting = self._buckets[bucket]
            positions.batches.append(waiting.ordinals)
            origins_of = GroupOrigins(positions.inputs, waiting.ordinals)
            try:
                batches.append(self._groups.batch(bucket, waiting.release(), origins_of))
            except Exception as error:  # the batches before it are good, and go first
                self.failures.append((error, index))
                out += chunk_of(batches, positions, number)
                out.append(Chunk.failure(error, positions, number + 1))
                batches = []
        return [*out, *chunk_of(batches, positions, len(positions.batches))]

    def _positions(
        self, waiting: Sequence[Ordinals], ends: Sequence[int], *, ended: bool
    ) -> DeferredPositions:
        """Positions of batches that are yet to be made; see `DeferredPositions`."""
        return DeferredPositions(
            key=self._key,
            inputs=self._inputs,
            waiting=waiting,
            ends=ends,
            ended=ended,
            batches=[],
        )

    def flush(self) -> list[Chunk]:
        return self._batch_remainder(ended=True)

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """Gives the elements that wait before a failure in smaller batches.

        All buckets are empty after it.
        """
        left = self._batch_remainder(ended=False)
        self._buckets = [WaitingElements() for _ in self._buckets]
        self._inputs = InputChunks()
        self._resumed = NONE
        self._seen = 0
        self._span = 0
        return [*left, chunk]

    def _find_full(self, ids: Ordinals) -> list[tuple[int, Ordinals]]:
        """The buckets that elements fill, in order, each with the indices of its new elements."""
        events = []
        for bucket in np.unique(ids[ids != DELIVERED]).tolist():
            size = self._groups.batch_sizes[bucket]
            indices = np.flatnonzero(ids == bucket)
            # Elements that wait already count below 0: they are in the bucket, not in `indices`.
            firsts = range(-len(self._buckets[bucket].ordinals), len(indices) - size + 1, size)
            events += [(bucket, indices[max(first, 0) : first + size]) for first in firsts]
        return sorted(events, key=lambda event: int(event[1][-1]))

    def _keep(
        self, elements: Elements, ids: Ordinals, events: Sequence[tuple[int, Ordinals]]
    ) -> None:
        """Adds the elements that are in no batch to their buckets."""
        last_used = {bucket: int(indices[-1]) for bucket, indices in events}
        for bucket in np.unique(ids[ids != DELIVERED]).tolist():
            indices = np.flatnonzero(ids == bucket)
            indices = indices[indices > last_used.get(bucket, -1)]
            if len(indices):
                self._buckets[bucket].add(select(elements, indices), indices + self._seen)

    def _batch_remainder(self, *, ended: bool) -> list[Chunk]:
        left = [bucket for bucket, waiting in enumerate(self._buckets) if len(waiting.ordinals)]
        if not left or self._drop_remainder:
            return []
        waiting = [self._buckets[bucket].ordinals for bucket in left]
        ends = [self._seen] * (len(left) + 1)
        positions = self._positions(waiting, ends, ended=ended)
        return self._batches(
            ((bucket, None) for bucket in sorted(left, key=self._groups.sort_key)), positions
        )
