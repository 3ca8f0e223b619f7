"""Buckets: batches of elements of about one length, in the order of tf.data's `bucket_by_sequence_length`.

Rules:
- Elements wait in the bucket of their length; a bucket that has its batch size is given at once. When the input ends,
  what waits is given in smaller batches, the shortest lengths first.
- A position says which elements wait (`deferred_positions.py`): a resumed step gets them again, and passes over those
  between.
- What waits is picked out of its chunk in columns; records stay Frames.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np

from streamrec.pipeline.elements.chunk import Chunk, Elements
from streamrec.pipeline.elements.columns import as_array, is_nest, select, window
from streamrec.pipeline.elements.positions import Positions, shift
from streamrec.pipeline.engine.description import name_of
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.batch import chunk_of, join_rows, make_batch
from streamrec.pipeline.stages.calling import Calling
from streamrec.pipeline.stages.deferred_positions import NONE, DeferredPositions, Ordinals, Origins, WaitedElements
from streamrec.pipeline.stages.padding import Padding

__all__ = ["Bucket", "Grouping", "Groups"]

GONE = -1
"""The bucket of an element that had been given before the run was resumed."""


@dataclass(frozen=True, slots=True)
class Bucket(Stage):
    """Joins elements of about one length; see `Dataset.bucket_by_sequence_length`. Without padding, as `batch` does."""

    length_of: Callable[..., Any]
    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    padding: Padding | None = Padding()
    pad_to_bucket_boundary: bool = False
    drop_remainder: bool = False
    offload: ClassVar[Offload] = Offload.ALWAYS

    def __post_init__(self) -> None:
        if len(self.batch_sizes) != len(self.boundaries) + 1:
            raise ValueError(
                f"{len(self.batch_sizes)} bucket_batch_sizes for {len(self.boundaries)} bucket_boundaries: one more is"
                " wanted, the last for what is longer than all boundaries"
            )
        if any(last <= first for first, last in pairwise(self.boundaries)):
            raise ValueError(f"bucket_boundaries={list(self.boundaries)} must grow from each to the next")

    def __repr__(self) -> str:
        """As in positions: functions differ from run to run but for their names."""
        padding = f"{self.padding}, pad_to_bucket_boundary={self.pad_to_bucket_boundary}"
        sizes = f"{list(self.boundaries)}, {list(self.batch_sizes)}"
        return f"Bucket({name_of(self.length_of)}, {sizes}, {padding}, drop_remainder={self.drop_remainder})"

    def start(self, key: str, state: Mapping[str, Any] | None) -> Step:
        return Grouping(self.length_of, self, self.drop_remainder, key, state)

    @property
    def sizes(self) -> Sequence[int]:
        return self.batch_sizes

    def number(self, found: Any) -> int:
        return bisect_right(self.boundaries, int(found))

    def order(self, group: int) -> int:
        """The shortest lengths come first."""
        return group

    def batch(self, group: int, elements: Any, origin: Positions) -> Any:
        """The elements of one bucket as a batch.

        Raises:
            ValueError: Arrays do not fit together; or are to be padded to a boundary, and are longer than all.
        """
        if self.padding is None:
            return make_batch(elements)
        if not self.pad_to_bucket_boundary:
            return self.padding.batch(elements)
        if group == len(self.boundaries):
            raise ValueError(
                "pad_to_bucket_boundary=True, and there is an element as long as the last of"
                f" bucket_boundaries={list(self.boundaries)} or longer: filter such elements, or add a boundary"
            )
        shapes = bound_shapes(elements[0], self.padding.shapes, self.boundaries[group] - 1)
        return replace(self.padding, shapes=shapes).batch(elements)


def bound_shapes(element: Any, shapes: Any, length: int) -> Any:
    """Shapes for elements like this one, with a length where they are unknown; without any, in the first dimension."""
    if is_nest(element):
        keys = list(element) if isinstance(element, dict) else range(len(element))
        parts = {key: bound_shapes(element[key], None if shapes is None else shapes[key], length) for key in keys}
        return parts if isinstance(element, dict) else tuple(parts.values())
    if shapes is not None:
        return [length if size in (None, -1) else size for size in shapes]
    dimensions = as_array(element).ndim
    return [length, *[None] * (dimensions - 1)] if dimensions else []


class Groups(Protocol):
    """Which elements wait together, each group by a number from 0 on."""

    @property
    def sizes(self) -> Sequence[int]:
        """How many elements make a batch, for each group that is known so far."""

    def number(self, found: Any) -> int:
        """The group of an element of which the user's function gave this; one that is new is known from then on."""

    def order(self, group: int) -> int:
        """Where a group's remainder comes among those of others."""

    def batch(self, group: int, elements: Any, origin: Positions) -> Any:
        """What is made of elements of one group, which were made of that."""


class WaitingElements:
    """The elements that wait in one bucket: parts of chunks, and their ordinals."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self.ordinals = NONE

    def add(self, elements: Any, ordinals: Ordinals) -> None:
        """Keeps some elements more."""
        self._parts.append(elements)
        self.ordinals = np.concatenate([self.ordinals, ordinals])

    def release(self) -> Any:
        """All of them, in order."""
        parts, self._parts, self.ordinals = self._parts, [], NONE
        return join_rows(parts)


class Grouping(Calling):
    """A step that gives each group of elements when it is full.

    Args:
        function: Gives what an element's group is found by.
        groups: Finds it.
        drop_remainder: Whether what waits at the end is left out.
        key, state: As for `Stage.start`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        groups: Groups,
        drop_remainder: bool,
        key: str,
        state: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(function, groups.number)
        self._groups = groups
        self._drop_remainder = drop_remainder
        self._key = key
        self._buckets: list[WaitingElements] = []
        self._places = Origins()
        self._seen = 0
        self._span: int = state["span"] if state else 0
        self._resumed: Ordinals = np.cumsum(state["waiting"], dtype=np.int64) if state else NONE

    def feed(self, chunk: Chunk) -> list[Chunk]:
        """The groups that a chunk fills."""
        out, first, count = [], 0, len(chunk.elements)
        wanted = self._new_indices(count)
        elements = chunk.elements if len(wanted) == count else select(chunk.elements, wanted) if len(wanted) else ()
        for results in self._results(elements):
            last = count
            if results.error is not None:
                last = int(wanted[results.last])
                self.failures[-1] = (results.error, last)
            rest = Chunk(window(chunk.elements, first, count), shift(chunk.positions, first), 0) if first else chunk
            ids = np.full(last - first, GONE, np.int64)
            ids[wanted[results.first : results.last] - first] = results.results
            out += self._fill(rest, ids, first)
            if results.error is not None:
                out += self.fail(Chunk.failure(results.error, chunk.positions, last + 1))
            first = last + 1
        return out

    def _new_indices(self, count: int) -> Ordinals:
        """The indices of those of the next `count` elements that had not been given before the run was resumed."""
        passed = min(max(self._span - self._seen, 0), count)
        if not passed:
            return np.arange(count)
        again = self._resumed[(self._resumed >= self._seen) & (self._resumed < self._seen + count)] - self._seen
        return np.concatenate([again, np.arange(passed, count)])

    def _fill(self, chunk: Chunk, ids: Ordinals, first: int) -> list[Chunk]:
        """The groups that these elements fill, of which the first is element `first` of what was fed."""
        self._buckets += [WaitingElements() for _ in self._groups.sizes[len(self._buckets) :]]
        self._places = self._places.then(self._seen, chunk.positions)
        events = self._events(ids)
        passed = min(max(self._span - self._seen, 0), len(ids))
        ends = [self._seen + end for end in (passed, *(int(indices[-1]) + 1 for _, indices in events))]
        waiting = [*(bucket.ordinals for bucket in self._buckets), self._seen + np.flatnonzero(ids != GONE)]

        def fill() -> Iterator[tuple[int, int]]:
            for bucket, indices in events:
                self._buckets[bucket].add(select(chunk.elements, indices), indices + self._seen)
                yield bucket, first + int(indices[-1])

        out = self._batches(fill(), DeferredPositions(self._key, self._places, waiting, ends, False, []))
        self._keep(chunk.elements, ids, events)
        self._seen += len(ids)
        self._places = self._places.keep(np.concatenate([NONE, *(bucket.ordinals for bucket in self._buckets)]))
        return out

    def _batches(self, full: Iterable[tuple[int, int | None]], positions: DeferredPositions) -> list[Chunk]:
        """The batches of what waits in these buckets; with each the index of the element that filled it, if one did."""
        out: list[Chunk] = []
        batches: list[Any] = []
        for number, (bucket, index) in enumerate(full):
            waiting = self._buckets[bucket]
            positions.batches.append(waiting.ordinals)
            origin = WaitedElements(positions.places, waiting.ordinals)
            try:
                batches.append(self._groups.batch(bucket, waiting.release(), origin))
            except Exception as error:
                self.failures.append((error, index))
                out += [*chunk_of(batches, positions, number), Chunk.failure(error, positions, number + 1)]
                batches = []
        return [*out, *chunk_of(batches, positions, len(positions.batches))]

    def flush(self) -> list[Chunk]:
        """What waits at the end."""
        return self._remainder(ended=True)

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """What waits when an element failed comes in smaller batches; buckets begin again after it."""
        left = self._remainder(ended=False)
        self._buckets = [WaitingElements() for _ in self._buckets]
        self._places, self._resumed = Origins(), NONE
        self._seen = self._span = 0
        return [*left, chunk]

    def _events(self, ids: Ordinals) -> list[tuple[int, Ordinals]]:
        """The buckets that these fill, in order, each with the places of those among them that go into the batch."""
        events = []
        for bucket in np.unique(ids[ids != GONE]).tolist():
            size, indices = self._groups.sizes[bucket], np.flatnonzero(ids == bucket)
            firsts = range(-len(self._buckets[bucket].ordinals), len(indices) - size + 1, size)
            events += [(bucket, indices[max(first, 0) : first + size]) for first in firsts]
        return sorted(events, key=lambda event: int(event[1][-1]))

    def _keep(self, elements: Elements, ids: Ordinals, events: Sequence[tuple[int, Ordinals]]) -> None:
        """Those that went into no batch wait in their buckets."""
        gone = dict.fromkeys(range(len(self._buckets)), GONE) | {bucket: int(indices[-1]) for bucket, indices in events}
        for bucket in np.unique(ids[ids != GONE]).tolist():
            indices = np.flatnonzero(ids == bucket)
            indices = indices[indices > gone[bucket]]
            if len(indices):
                self._buckets[bucket].add(select(elements, indices), indices + self._seen)

    def _remainder(self, *, ended: bool) -> list[Chunk]:
        """Smaller batches of all that waits."""
        left = [bucket for bucket, waiting in enumerate(self._buckets) if len(waiting.ordinals)]
        if not left or self._drop_remainder:
            return []
        waiting, ends = [self._buckets[bucket].ordinals for bucket in left], [self._seen] * (len(left) + 1)
        positions = DeferredPositions(self._key, self._places, waiting, ends, ended, [])
        return self._batches(((bucket, None) for bucket in sorted(left, key=self._groups.order)), positions)
