"""What a pipeline is, before it runs: frozen, picklable, comparable descriptions, nested in one another.

Rules:
- A chain is a source and the stages behind it. A source may hold chains of its own (`Repeat`, `Zip`, ...).
- A source is described in one file with what runs it. It awaits where a step must not: it does I/O, or runs tasks.
- `chunks(state, within)` starts it and resumes it: state is what its own positions said, and is given there only.
- Chains that a source holds are run by `within.chunks`, so that sources know nothing of the driver.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from streamrec.pipeline.budget import Share
from streamrec.pipeline.chunk import Chunk, Position
from streamrec.pipeline.environment import Rank
from streamrec.pipeline.session import Session
from streamrec.pipeline.stages import Stage

__all__ = ["Chain", "Source", "Within", "described", "named"]


class Source(Protocol):
    """A description of where elements come from."""

    def lines(self) -> Iterator[str]:
        """The source for people, and for telling whether a saved position belongs to it."""

    def chunks(self, state: Mapping[str, Any] | None, within: Within) -> AsyncGenerator[Chunk]:
        """Runs it.

        Args:
            state: Where to go on, from a chunk's positions (`position["source"]`); None for the start.
            within: What it runs within.
        """


@dataclass(frozen=True, slots=True)
class Chain:
    """A source and the stages behind it."""

    source: Source
    stages: tuple[Stage, ...] = ()

    def lines(self) -> Iterator[str]:
        """The chain for people, and for telling whether a saved position belongs to it: source first, then stages."""
        yield from self.source.lines()
        for stage in self.stages:
            yield described(stage)


@dataclass(frozen=True, slots=True)
class Within:
    """What a running source has, and what is known of those behind it.

    Args:
        run: The driver: gives a chain's chunks from a position on.
        session: What the run keeps open from epoch to epoch.
        budget: Bytes that the source may hold, with all that it runs.
        deterministic: Whether sources that were not told otherwise keep the order.
        epoch: The run's own, and how often an enclosing `repeat` has begun anew.
        skip: How many of the first elements will be dropped: the position lies within a chunk.
        rank: Which rank runs it; None to look for it in the environment.
        batch: How many elements make a batch behind the source: chunks may end between two where that costs nothing.
    """

    run: Callable[[Chain, Position | None, Within], AsyncGenerator[Chunk]]
    session: Session
    budget: int
    deterministic: bool = True
    epoch: int = 0
    skip: int = 0
    rank: Rank | None = None
    batch: int = 1

    def chunks(self, chain: Chain, position: Position | None) -> AsyncGenerator[Chunk]:
        """A chain's chunks from a position on, within all this."""
        return self.run(chain, position, self)

    def take(self, share: Share) -> tuple[int, Within]:
        """A share of the budget for a buffer, in bytes, and all this with what is left for the chains that fill it."""
        taken = share.of(self.budget)
        return taken, replace(self, budget=self.budget - taken)

    def part(self, count: int) -> Within:
        """All this with one of `count` equal parts of the budget, for chains that run beside each other."""
        return replace(self, budget=self.budget // count)


def described(stage: object) -> str:
    """A stage, or a source with a function, without what differs from run to run: functions by their names."""
    function = getattr(stage, "function", None)
    if function is None:
        return repr(stage)
    return f"{type(stage).__name__}({named(function)})"


def named(function: Callable[..., Any]) -> str:
    """A function by its name."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}.{name}"
