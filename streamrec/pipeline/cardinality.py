"""Cardinality: how many elements a chain gives, as far as its description says it, in tf.data's numbers.

Of shards that have a manifest or an index, that is read, once for each source: a small object.

A source or stage that is not named here is of an unknown number: what it gives depends on the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Final

from streamrec import bridge
from streamrec.pipeline import sources, stages
from streamrec.pipeline.elements.nests import leaves
from streamrec.pipeline.engine.description import Chain, Source, name_of
from streamrec.pipeline.engine.ranks import Rank, rank_here, worker_here
from streamrec.pipeline.engine.session import session
from streamrec.pipeline.engine.stage import UNKNOWN_CARDINALITY
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.pipeline.stages.batch import Batching

__all__ = ["INFINITE_CARDINALITY", "UNKNOWN_CARDINALITY", "cardinality_of", "is_endless", "refuse_endless_inputs"]

INFINITE_CARDINALITY: Final = -1
"""What `cardinality()` gives of a Dataset without an end. tf.data.INFINITE_CARDINALITY is the same number."""


def cardinality_of(chain: Chain, rank: Rank | None = None) -> int:
    """How many elements a chain gives a rank; or INFINITE_CARDINALITY, or UNKNOWN_CARDINALITY.

    Args:
        chain: The chain.
        rank: Which rank runs it; None to look.

    >>> cardinality_of(Chain(sources.Range(0, 10), (stages.Skip(1), stages.Batch(4))))
    3
    """
    count = of_source(chain.source, rank)
    rows = UNKNOWN_CARDINALITY  # in the batches under way: what `unbatch` gives
    for stage in chain.stages:
        if isinstance(stage, stages.Unbatch):
            count, rows = rows, UNKNOWN_CARDINALITY
            continue
        if isinstance(stage, Batching):
            rows = count - count % stage.batch_size if stage.drop_remainder and count >= 0 else count
        elif not isinstance(stage, stages.Parse):
            rows = UNKNOWN_CARDINALITY
        count = stage.cardinality(count)
    return count


def is_endless(chain: Chain) -> bool:
    """Whether a chain never ends, as far as its description says it; nothing is read for it.

    Args:
        chain: The chain.

    >>> is_endless(Chain(sources.Counter(0, 1), (stages.Filter(bool),)))
    True
    >>> is_endless(Chain(sources.Counter(0, 1), (stages.Take(7),)))
    False
    """
    return is_endless_source(chain.source) and not any(stage.ends for stage in chain.stages)


def is_endless_source(source: Source) -> bool:
    """Whether a source never ends, likewise."""
    if isinstance(source, Shards):
        return False
    match source:
        case sources.Counter() | sources.Random() | sources.Choices():
            return True
        case sources.Repeat(inner=inner, count=count):
            some = not isinstance(inner.source, sources.Range | sources.Slices) or cardinality_of(inner) != 0
            return count != 0 and ((count < 0 and some) or is_endless(inner))
        case sources.Concatenate():
            return any(map(is_endless, source.parts))
        case sources.Zip():
            return all(map(is_endless, leaves(source.nest)))
        case sources.Choose():
            several = all if source.stop_on_empty else any
            return is_endless(source.choices) and several(map(is_endless, source.parts))
        case sources.Interleaved():
            return is_endless(source.outer)
        case sources.Cache() | sources.ParallelMap() | sources.Prefetch() | sources.Shuffle():
            return is_endless(source.inner)
        case _:
            return False


def refuse_endless_inputs(chain: Chain, verb: str) -> Chain:
    """The chain, in which a function of `interleave` or `flat_map` that makes a dataset without an end is an error."""
    source = chain.source
    if isinstance(source, Shards) or any(stage.ends for stage in chain.stages):
        return chain
    if isinstance(source, sources.Interleaved):
        source = replace(source, function=_refusing(source.function, verb))
    elif isinstance(source, sources.Cache | sources.ParallelMap | sources.Prefetch | sources.Repeat | sources.Shuffle):
        source = replace(source, inner=refuse_endless_inputs(source.inner, verb))
    return replace(chain, source=source)


def _refusing(function: Callable[..., Any], verb: str) -> Callable[..., Any]:
    @wraps(function)
    def call(*element: Any) -> Any:
        dataset = function(*element)
        chain = getattr(dataset, "chain", None)
        if isinstance(chain, Chain) and is_endless(chain):
            raise ValueError(
                f"{verb} would never end: {name_of(function)} makes a dataset that has no end; put take(count) after it"
            )
        return dataset

    return call


def of_source(source: Source, rank: Rank | None) -> int:
    """How many elements a source gives a rank."""
    if isinstance(source, Shards):  # most are: no other source is loaded for them, while shards are being opened
        return UNKNOWN_CARDINALITY
    inner = partial(cardinality_of, rank=rank)
    match source:
        case sources.Range() | sources.Slices():
            return len(source)
        case sources.Counter() | sources.Random() | sources.Choices():
            return INFINITE_CARDINALITY
        case sources.Repeat():
            return repeated(inner(source.inner), source.count)
        case sources.Cache() | sources.ParallelMap() | sources.Prefetch() | sources.Shuffle():
            return inner(source.inner)
        case sources.Concatenate():
            return total(map(inner, source.parts))
        case sources.Zip():
            return least(map(inner, leaves(source.nest)))
        case sources.Distribute() | sources.GlobalShuffle():
            return counted(source, rank)
        case _:
            return UNKNOWN_CARDINALITY


def counted(source: sources.Distribute | sources.GlobalShuffle, rank: Rank | None) -> int:
    """What a manifest or an index says of shards, for who reads here; remembered, as each `list(dataset)` asks."""
    key = ("cardinality", source.rank or rank or rank_here(), worker_here())
    count: int | None = source.memo.get(key)
    if count is None:
        count = bridge.run(told, source, rank)
        source.memo.keep(key, count)
    return count


async def told(source: sources.Distribute | sources.GlobalShuffle, rank: Rank | None) -> int:
    """What a manifest or an index says of shards."""
    async with session() as opened:
        count = await source.count(opened, rank)
        return UNKNOWN_CARDINALITY if count is None else count


def repeated(count: int, times: int) -> int:
    """Of an epoch of `count` elements, repeated; as in tf.data, one of an unknown number is not empty."""
    if times == 0 or count == 0:
        return 0
    if times < 0:
        return INFINITE_CARDINALITY
    return count if count < 0 else count * times


def total(counts: Iterable[int]) -> int:
    """Of parts one after the other."""
    parts = list(counts)
    if INFINITE_CARDINALITY in parts:
        return INFINITE_CARDINALITY
    return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in parts else sum(parts)


def least(counts: Iterable[int]) -> int:
    """Of parts side by side."""
    parts = list(counts)
    if UNKNOWN_CARDINALITY in parts:
        return UNKNOWN_CARDINALITY
    return min((count for count in parts if count >= 0), default=INFINITE_CARDINALITY)
