"""Zip: elements of several chains side by side, in columns. `Zipper` is told what came, and pairs it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from streamrec.pipeline.background import background
from streamrec.pipeline.budget import Share
from streamrec.pipeline.chunk import Chunk, Position, Positions
from streamrec.pipeline.columns import Columns, window
from streamrec.pipeline.description import Within
from streamrec.pipeline.nests import leaves, map_nest
from streamrec.pipeline.queue import ByteQueue, fill

__all__ = ["Zip", "Zipper"]

AHEAD = Share(4)
"""A chain that is zipped runs ahead by this part of its part of the budget."""


@dataclass(frozen=True, slots=True)
class Zip:
    """Chains side by side, in dicts and tuples as an element has its parts, up to the end of the shortest."""

    nest: Any

    def lines(self) -> Iterator[str]:
        yield f"Zip({map_nest(lambda _: '*', self.nest)})"
        yield from (f"  {line}" for part in leaves(self.nest) for line in part.lines())

    async def chunks(self, state: Mapping[str, Any] | None, within: Within) -> AsyncGenerator[Chunk]:
        """Each chain runs in a task of its own, with an equal share of the budget."""
        chains = list(leaves(self.nest))
        positions = state["parts"] if state else [None] * len(chains)
        shares = [within.part(len(chains)).take(AHEAD) for _ in chains]
        queues = [ByteQueue(ahead) for ahead, _ in shares]
        zipper = Zipper(self.nest)
        async with background() as tasks:
            for queue, (_, feeding), chain, position in zip(queues, shares, chains, positions, strict=True):
                tasks.start_soon(fill, queue, feeding.chunks(chain, position))
            while True:
                while (part := zipper.wanted) is not None:
                    chunk = await queues[part].get()
                    if chunk is None:
                        return
                    zipper.feed(part, chunk)
                yield zipper.pair()


class Zipper:
    """Pairs elements.

    Args:
        nest: What an element looks like: anything, in dicts and tuples, in the place of each part.
    """

    def __init__(self, nest: Any) -> None:
        self._nest = nest
        self._fronts: list[Chunk | None] = [None for _ in leaves(nest)]
        self._used = [0] * len(self._fronts)

    @property
    def wanted(self) -> int | None:
        """The first part that has nothing left; None where all have something."""
        return self._fronts.index(None) if None in self._fronts else None

    def feed(self, part: int, chunk: Chunk) -> None:
        """A part's next chunk."""
        self._fronts[part], self._used[part] = chunk if len(chunk.elements) else None, 0

    def pair(self) -> Chunk:
        """As many elements as all parts have, with their positions; call it where none is wanted."""
        fronts = [(chunk, used) for chunk, used in zip(self._fronts, self._used, strict=True) if chunk is not None]
        count = min(len(chunk.elements) - used for chunk, used in fronts)
        windows = iter([window(chunk.elements, used, used + count) for chunk, used in fronts])
        positions = Abreast(tuple((chunk.positions, used) for chunk, used in fronts))
        nbytes = sum(chunk.nbytes * count // len(chunk.elements) for chunk, _ in fronts) + 1
        for part, (chunk, used) in enumerate(fronts):
            self._used[part] = used + count
            if self._used[part] == len(chunk.elements):
                self._fronts[part] = None
        return Chunk(Columns(map_nest(lambda _: column(next(windows)), self._nest)), positions, nbytes)


def column(elements: Any) -> Any:
    """A part's elements as a part of columns."""
    return elements.nest if isinstance(elements, Columns) else elements


@dataclass(frozen=True, slots=True)
class Abreast:
    """Positions of elements that were paired: those of all parts."""

    parts: tuple[tuple[Positions, int], ...]

    def at(self, index: int) -> Position:
        return {"source": {"parts": [dict(positions.at(first + index)) for positions, first in self.parts]}}
