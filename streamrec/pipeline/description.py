"""What a pipeline is, before it runs: frozen, picklable, comparable descriptions, nested in one another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from streamrec.pipeline.given import Range, Slices
from streamrec.pipeline.nests import leaves, map_nest
from streamrec.pipeline.source import Shards
from streamrec.pipeline.stages import Stage

__all__ = ["MEMORY_BUDGET", "Chain", "Concatenate", "Prefetch", "Repeat", "Source", "Zip", "lines"]

MEMORY_BUDGET = 256 << 20
"""Default bytes that one running pipeline may hold: 256 MiB."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A chain run `count` times over; -1 for ever."""

    inner: Chain
    count: int = -1


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A chain run ahead of its consumer, by `buffer_bytes` at the most."""

    inner: Chain
    buffer_bytes: int

    def __post_init__(self) -> None:
        if self.buffer_bytes < 1:
            raise ValueError(f"prefetch buffer of {self.buffer_bytes} bytes must be at least 1")


@dataclass(frozen=True, slots=True)
class Concatenate:
    """Chains one after the other."""

    parts: tuple[Chain, ...]


@dataclass(frozen=True, slots=True)
class Zip:
    """Chains side by side: in dicts and tuples as an element has its parts."""

    nest: Any


Source = Shards | Range | Slices | Repeat | Prefetch | Concatenate | Zip


@dataclass(frozen=True, slots=True)
class Chain:
    """A source and the stages behind it."""

    source: Source
    stages: tuple[Stage, ...] = ()


def lines(chain: Chain) -> Iterator[str]:
    """The chain for people, and for telling whether a saved position belongs to it: a line per source and stage."""
    match chain.source:
        case Repeat(inner, count):
            yield from lines(inner)
            yield f"Repeat(count={count})"
        case Prefetch(inner):
            yield from lines(inner)  # how far it runs ahead does not change what comes
        case Shards() as shards:
            yield f"Shards({shards.plan!r}, {list(shards.filenames)})"
        case Range() | Slices() as given:
            yield repr(given)
        case Concatenate(parts):
            yield f"Concatenate({len(parts)})"
            yield from (f"  {line}" for part in parts for line in lines(part))
        case Zip(nest):
            yield f"Zip({map_nest(lambda _: '*', nest)})"
            yield from (f"  {line}" for part in leaves(nest) for line in lines(part))
    for stage in chain.stages:
        yield described(stage)


def described(stage: Stage) -> str:
    """A stage without what differs from run to run: functions by their names."""
    function = getattr(stage, "function", None)
    if function is None:
        return repr(stage)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{type(stage).__name__}({getattr(function, '__module__', '')}.{name})"
