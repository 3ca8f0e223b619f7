"""Which bytes of an object the cache has. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from streamrec.storage.cache_settings import SEGMENT_BYTES


class Span(NamedTuple):
    """The bytes of one block: from `start`, `length` of them."""

    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


def segment_end(position: int, segment: int = SEGMENT_BYTES) -> int:
    """Returns where the block that begins at `position` ends at the latest.

    >>> segment_end(0, 10), segment_end(9, 10), segment_end(10, 10)
    (10, 10, 20)
    """
    return (position // segment + 1) * segment


class SpanMap:
    """The blocks of one version of one object; they may overlap, because several processes write.

    >>> spans = SpanMap([Span(10, 10), Span(30, 5)])
    >>> spans.covering(12), spans.covering(20), spans.next_start(20)
    (Span(start=10, length=10), None, 30)
    """

    def __init__(self, spans: list[Span] | None = None) -> None:
        self._spans = sorted(set(spans or ()))
        self._longest = max((span.length for span in self._spans), default=0)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, span: Span) -> None:
        """Adds a block; twice is the same as once."""
        index = bisect_left(self._spans, span)
        if self._spans[index : index + 1] != [span]:
            self._spans.insert(index, span)
            self._longest = max(self._longest, span.length)

    def discard(self, span: Span) -> None:
        """Removes a block, if it is there."""
        index = bisect_left(self._spans, span)
        if self._spans[index : index + 1] == [span]:
            del self._spans[index]

    def covering(self, position: int) -> Span | None:
        """Returns the block with this byte that reaches furthest; None if no block has it."""
        best: Span | None = None
        for index in range(bisect_right(self._spans, (position, 1 << 62)) - 1, -1, -1):
            span = self._spans[index]
            if span.start + self._longest <= position:
                break
            if span.end > position and (best is None or span.end > best.end):
                best = span
        return best

    def next_start(self, position: int) -> int | None:
        """Returns where the next block after a byte begins; None after the last."""
        index = bisect_right(self._spans, (position, 1 << 62))
        return self._spans[index].start if index < len(self._spans) else None
