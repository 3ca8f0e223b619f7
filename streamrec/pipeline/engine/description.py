"""What a pipeline is, before it runs: frozen, picklable, comparable descriptions, nested in one another.

Rules:
- A chain is a source and the stages after it. A source may hold chains of its own (`Repeat`, `Zip`, ...).
- A source is described in one file with what runs it. It awaits where a step must not: it does I/O, or runs tasks.
- `chunks(state, within)` starts it and resumes it: state is what its own positions said, and is given there only.
- A source that buffers takes a share of the budget by `within.take`, and runs its chains within the rest (`budget.py`).
- Chains that a source holds are run by `within.chunks`, so that they are counted without a line of the source's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from hashlib import blake2b
from typing import Any, ClassVar

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.stage import UNKNOWN_CARDINALITY, Stage

__all__ = [
    "Chain",
    "ChainSource",
    "Source",
    "derive_seed",
    "describe_stage",
    "in_order",
    "is_assigned",
    "name_of",
    "parts_of",
]


class Source:
    """A description of where elements come from; each is a frozen dataclass.

    Attributes:
        is_assigned: Whether each reader (a rank, or one of its loader workers) reads a part of its own.
    """

    __slots__ = ()
    is_assigned: ClassVar[bool] = False

    def lines(self) -> Iterator[str]:
        """The source for people, and for telling whether a saved position belongs to it."""
        yield repr(self)

    def element_spec(self) -> Any:
        """What its elements look like; None where that is not known before it runs."""
        return None

    def cardinality(self, rank: Rank | None) -> int:
        """How many elements it gives a rank (None: the one that runs here), or INFINITE or UNKNOWN_CARDINALITY."""
        return UNKNOWN_CARDINALITY

    @property
    def is_endless(self) -> bool:
        """Whether it never ends, as far as its description says."""
        return False

    def refuse_endless(self, verb: str) -> Source:
        """The same source, in which it is an error, which names the verb, that a function makes an endless dataset."""
        return self

    def chunks(self, state: Mapping[str, Any] | None, within: Any) -> AsyncGenerator[Chunk]:
        """Runs it.

        Args:
            state: Where to go on, from a chunk's positions (`position["source"]`); None for the start.
            within: What it runs within, a `RunContext`.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Chain:
    """A source and the stages after it."""

    source: Source
    stages: tuple[Stage, ...] = ()

    def lines(self) -> Iterator[str]:
        """The chain for people, and for telling whether a saved position belongs to it: source first, then stages."""
        yield from self.source.lines()
        for stage in self.stages:
            yield describe_stage(stage)

    def element_spec(self) -> Any:
        """A spec, or dicts and tuples of them, of its elements; None where its description does not say it."""
        spec = self.source.element_spec()
        for stage in self.stages:
            spec = None if spec is None else stage.element_spec(spec)
        return spec

    def cardinality(self, rank: Rank | None = None) -> int:
        """How many elements it gives a rank (None: the one that runs here), or INFINITE or UNKNOWN_CARDINALITY."""
        count, rows = self.source.cardinality(rank), UNKNOWN_CARDINALITY
        for stage in self.stages:
            count, rows = stage.cardinalities(count, rows)
        return count

    @property
    def is_endless(self) -> bool:
        """Whether it never ends, as far as its description says."""
        return self.source.is_endless and not any(stage.ends for stage in self.stages)

    def refuse_endless(self, verb: str) -> Chain:
        """See `Source.refuse_endless`."""
        if any(stage.ends for stage in self.stages):
            return self
        source = self.source.refuse_endless(verb)
        return self if source is self.source else replace(self, source=source)


@dataclass(frozen=True, slots=True)
class ChainSource(Source):
    """A source that gives the elements of one chain: again, ahead, kept, in another order, or what is made of each.

    Attributes:
        one_to_one: Whether each of its elements can be made again of one of the chain's.
    """

    inner: Chain
    one_to_one: ClassVar[bool] = True

    def line(self) -> str:
        """What `lines` says of it after those of the chain."""
        return repr(self)

    def lines(self) -> Iterator[str]:
        yield from self.inner.lines()
        yield self.line()

    def element_spec(self) -> Any:
        return self.inner.element_spec()

    def cardinality(self, rank: Rank | None) -> int:
        return self.inner.cardinality(rank)

    @property
    def is_endless(self) -> bool:
        return self.inner.is_endless

    def refuse_endless(self, verb: str) -> Source:
        inner = self.inner.refuse_endless(verb)
        return self if inner is self.inner else replace(self, inner=inner)


def derive_seed(*numbers: int | str) -> int:
    """A seed that other numbers or texts were mixed into, from 0 to 2**64 - 1: the same on every machine."""
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=8).digest(), "little")


def describe_stage(stage: object) -> str:
    """A stage, or a source with a function, without what differs from run to run: functions by their names."""
    function = getattr(stage, "function", None)
    if function is None:
        return repr(stage)
    return f"{type(stage).__name__}({name_of(function)})"


def name_of(function: Callable[..., Any]) -> str:
    """A function by its name, its module's included; one that is a description by all that it says."""
    if is_dataclass(function):
        return repr(function)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}.{name}"


def parts_of(part: Any) -> Iterator[Any]:
    """All descriptions that one holds, in dicts and tuples too, itself first."""
    if is_dataclass(part):
        yield part
        held: Iterable[Any] = (getattr(part, each.name) for each in fields(part))
    else:
        held = part.values() if isinstance(part, Mapping) else part
    for each in held:
        if not isinstance(each, str | bytes) and (isinstance(each, Mapping | tuple | list) or is_dataclass(each)):
            yield from parts_of(each)


def in_order(chain: Chain, by_default: bool) -> bool:
    """Whether what a chain gives comes in one order, where `deterministic=None` means `by_default`."""
    for part in parts_of(chain):
        said = getattr(part, "deterministic", True)
        if not (by_default if said is None else said) and getattr(part, "cycle_length", 2) > 1:
            return False
    return True


def is_assigned(chain: Chain) -> bool:
    """Whether readers have parts of a chain, and do not each read all of it."""
    return any(isinstance(part, Source) and part.is_assigned for part in parts_of(chain))
