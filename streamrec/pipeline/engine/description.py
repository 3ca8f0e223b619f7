"""Descriptions of pipelines: frozen, picklable, comparable, and nested.

Rules:
- A chain is a source and the stages after it. A source may hold chains (`Repeat`, `Zip`, ...).
- A source is described and run in one file. Unlike a step it may await: it does I/O, or runs tasks.
- `chunks(state, context)` starts or resumes a source: the state comes from its positions, and is
  given only there.
- A source that buffers takes a share of the budget by `context.take`, and runs its chains with the
  rest (`budget.py`).
- A source runs the chains that it holds by `context.chunks`, which counts them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Final

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.stage import UNKNOWN_CARDINALITY, Stage

AUTOTUNE: Final = -1
"""As an argument: tune the value while the pipeline runs. The same number as tf.data.AUTOTUNE."""


class Source:
    """A description of where elements come from; subclasses are frozen dataclasses.

    Attributes:
        is_assigned: Whether each reader (a rank, or one of its loader workers) reads its own part.
    """

    __slots__ = ()
    is_assigned: ClassVar[bool] = False

    def lines(self) -> Iterator[str]:
        """The description for people, which saved positions are compared with."""
        yield repr(self)

    def element_spec(self) -> Any:
        """The spec of its elements; None if it is unknown before the run."""
        return None

    def cardinality(self, rank: Rank | None) -> int:
        """The number of elements for a rank, or INFINITE or UNKNOWN_CARDINALITY.

        `rank=None` stands for the one that runs here.
        """
        return UNKNOWN_CARDINALITY

    def row_count(self, rank: Rank | None) -> int:
        """The number of rows of all its elements, if they are batches, or UNKNOWN_CARDINALITY."""
        return UNKNOWN_CARDINALITY

    @property
    def makes_batches(self) -> bool:
        """Whether its elements are batches that it makes of single ones."""
        return False

    @property
    def is_endless(self) -> bool:
        """Whether the description says that it never ends."""
        return False

    def refuse_endless(self, verb: str) -> Source:
        """A source whose function must not make endless datasets; errors use the verb."""
        return self

    def chunks(self, state: Mapping[str, Any] | None, context: Any) -> AsyncGenerator[Chunk]:
        """Runs the source within a run, a `RunContext`.

        It begins at the start, or at the state of a chunk's positions (`position["source"]`).
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Chain:
    """A source and the stages after it."""

    source: Source
    stages: tuple[Stage, ...] = ()

    def lines(self) -> Iterator[str]:
        """The description for people, source first.

        Saved positions are compared with it.
        """
        yield from self.source.lines()
        for stage in self.stages:
            yield describe_stage(stage)

    def element_spec(self) -> Any:
        """The spec of its elements, or dicts and tuples of specs.

        None if the description does not say it.
        """
        spec = self.source.element_spec()
        for stage in self.stages:
            spec = None if spec is None else stage.element_spec(spec)
        return spec

    def cardinality(self, rank: Rank | None = None) -> int:
        """The number of elements for a rank, or INFINITE or UNKNOWN_CARDINALITY.

        `rank=None` stands for the one that runs here.
        """
        return self.cardinalities(rank)[0]

    def cardinalities(self, rank: Rank | None) -> tuple[int, int]:
        """The number of elements, and of the rows of all of these if they are batches."""
        count = self.source.cardinality(rank)
        rows = self.source.row_count(rank)
        for stage in self.stages:
            count, rows = stage.cardinalities(count, rows)
        return count, rows

    @property
    def is_endless(self) -> bool:
        """Whether the description says that it never ends."""
        return self.source.is_endless and not any(stage.ends for stage in self.stages)

    def refuse_endless(self, verb: str) -> Chain:
        """See `Source.refuse_endless`."""
        if any(stage.ends for stage in self.stages):
            return self
        source = self.source.refuse_endless(verb)
        return self if source is self.source else replace(self, source=source)


@dataclass(frozen=True, slots=True)
class ChainSource(Source):
    """A source of one chain's elements: repeated, prefetched, cached, shuffled or mapped.

    Attributes:
        one_to_one: Whether each of its elements can be made again from one element of the chain.
    """

    inner: Chain
    one_to_one: ClassVar[bool] = True

    def line(self) -> str:
        """The line after those of the chain."""
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


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a whole pipeline.

    Args:
        deterministic: Whether stages without their own `deterministic` keep the order; None for
            True.
        memory_budget: How many bytes one run may hold; None for a share of the machine's memory.
        epoch: The epoch at which a run begins.
        rank: The rank that runs it; None to look it up in the environment.
    """

    deterministic: bool | None = None
    memory_budget: int | None = None
    epoch: int = 0
    rank: Rank | None = None

    @classmethod
    def of(cls, several: Iterable[Options]) -> Options:
        """Joins the options of several: the largest budget, the first's epoch.

        The result is in order unless one of them has False.
        """
        parts = list(several)
        orders = [part.deterministic for part in parts if part.deterministic is not None]
        budgets = [part.memory_budget for part in parts if part.memory_budget is not None]
        rank = next((part.rank for part in parts if part.rank is not None), None)
        return cls(
            all(orders) if orders else None, max(budgets, default=None), parts[0].epoch, rank
        )


def describe_stage(stage: object) -> str:
    """Adds the function's name to a stage, or to a source with a function.

    The name is the same in each run.
    """
    function = getattr(stage, "function", None)
    if function is None:
        return repr(stage)
    return f"{type(stage).__name__}({name_of(function)})"


def name_of(function: Callable[..., Any]) -> str:
    """A function's name with its module; the `repr` of a function that is a dataclass."""
    if is_dataclass(function):
        return repr(function)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}.{name}"


def parts_of(part: Any) -> Iterator[Any]:
    """A description and all those within it; the outer one first."""
    yield part
    for each in held_by(part):
        yield from parts_of(each)


def held_by(part: Any) -> Iterator[Any]:
    """The descriptions in the fields of a description, in dicts and tuples too."""
    held: Iterable[Any] = (
        (getattr(part, each.name) for each in fields(part)) if is_dataclass(part) else part
    )
    for each in held.values() if isinstance(held, Mapping) else held:
        if is_dataclass(each):
            yield each
        elif isinstance(each, Mapping | tuple | list):
            yield from held_by(each)


def in_order(chain: Chain, by_default: bool) -> bool:
    """Whether a chain's elements have a fixed order; `deterministic=None` means `by_default`."""
    for part in parts_of(chain):
        deterministic = getattr(part, "deterministic", True)
        if (
            not (by_default if deterministic is None else deterministic)
            and getattr(part, "cycle_length", 2) > 1
        ):
            return False
    return True


def is_assigned(chain: Chain) -> bool:
    """Whether each reader reads its own part of a chain, and not all of it."""
    return any(isinstance(part, Source) and part.is_assigned for part in parts_of(chain))


def shared_seed(chain: Chain) -> int | None:
    """The seed that a chain has for all ranks, so that their states are the same.

    None if it has no seed.
    """
    seeds = (getattr(part, "shared_seed", None) for part in parts_of(chain))
    return next((seed for seed in seeds if seed is not None), None)
