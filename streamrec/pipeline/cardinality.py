"""Cardinality: how many elements a chain gives, as far as its description says it, in tf.data's numbers.

Of shards that have a manifest or an index, that is read, once for each source: a small object.

A source or stage that is not named here is of an unknown number: what it gives depends on the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from streamrec import bridge
from streamrec.pipeline.elements.nests import leaves
from streamrec.pipeline.engine.description import Chain, Source
from streamrec.pipeline.engine.random_streams import Choices
from streamrec.pipeline.engine.session import session
from streamrec.pipeline.sources.cache.cache import Cache
from streamrec.pipeline.sources.combine.zip import Zip
from streamrec.pipeline.sources.concatenate import Concatenate
from streamrec.pipeline.sources.endless import Counter, Random
from streamrec.pipeline.sources.global_shuffle.source import GlobalShuffle
from streamrec.pipeline.sources.in_memory import Range, Slices
from streamrec.pipeline.sources.prefetch import Prefetch
from streamrec.pipeline.sources.repeat import Repeat
from streamrec.pipeline.sources.shards.distribute import Distribute
from streamrec.pipeline.sources.shards.ranks import Rank, rank_here, worker_here
from streamrec.pipeline.sources.shuffle.shuffle import Shuffle
from streamrec.pipeline.stages.batch import Batch, PaddedBatch, RaggedBatch
from streamrec.pipeline.stages.conform import Conform
from streamrec.pipeline.stages.map.parallel_map import ParallelMap
from streamrec.pipeline.stages.parse import Parse
from streamrec.pipeline.stages.rebatch import CyclicBatch
from streamrec.pipeline.stages.scan import Scan
from streamrec.pipeline.stages.select import Enumerate, Shard, Skip, Take
from streamrec.pipeline.stages.stage import Map, Stage
from streamrec.pipeline.stages.unbatch import Unbatch
from streamrec.pipeline.stages.window import Window

__all__ = ["INFINITE_CARDINALITY", "UNKNOWN_CARDINALITY", "cardinality_of"]

INFINITE_CARDINALITY: Final = -1
"""What `cardinality()` gives of a Dataset without an end. tf.data.INFINITE_CARDINALITY is the same number."""

UNKNOWN_CARDINALITY: Final = -2
"""What `cardinality()` gives where only the data says it. tf.data.UNKNOWN_CARDINALITY is the same number."""


def cardinality_of(chain: Chain, rank: Rank | None = None) -> int:
    """How many elements a chain gives a rank; or INFINITE_CARDINALITY, or UNKNOWN_CARDINALITY.

    Args:
        chain: The chain.
        rank: Which rank runs it; None to look.

    >>> cardinality_of(Chain(Range(0, 10), (Skip(1), Batch(4))))
    3
    """
    count = of_source(chain.source, rank)
    rows = UNKNOWN_CARDINALITY  # in the batches under way: what `unbatch` gives
    for stage in chain.stages:
        if isinstance(stage, Unbatch):
            count, rows = rows, UNKNOWN_CARDINALITY
            continue
        if isinstance(stage, Batch | PaddedBatch | RaggedBatch):
            rows = count - count % stage.batch_size if stage.drop_remainder and count >= 0 else count
        elif not isinstance(stage, Parse):
            rows = UNKNOWN_CARDINALITY
        count = behind(stage, count)
    return count


def of_source(source: Source, rank: Rank | None) -> int:
    """How many elements a source gives a rank."""
    inner = partial(cardinality_of, rank=rank)
    match source:
        case Range() | Slices():
            return len(source)
        case Counter() | Random() | Choices():
            return INFINITE_CARDINALITY
        case Repeat():
            return repeated(inner(source.inner), source.count)
        case Cache() | ParallelMap() | Prefetch() | Shuffle():
            return inner(source.inner)
        case Concatenate():
            return total(map(inner, source.parts))
        case Zip():
            return least(map(inner, leaves(source.nest)))
        case Distribute() | GlobalShuffle():
            return counted(source, rank)
        case _:
            return UNKNOWN_CARDINALITY


def counted(source: Distribute | GlobalShuffle, rank: Rank | None) -> int:
    """What a manifest or an index says of shards, for who reads here; remembered, as each `list(dataset)` asks."""
    key = ("cardinality", source.rank or rank or rank_here(), worker_here())
    count: int | None = source.memo.get(key)
    if count is None:
        count = bridge.run(told, source, rank)
        source.memo.keep(key, count)
    return count


async def told(source: Distribute | GlobalShuffle, rank: Rank | None) -> int:
    """What a manifest or an index says of shards."""
    async with session() as opened:
        count = await source.count(opened, rank)
        return UNKNOWN_CARDINALITY if count is None else count


def repeated(count: int, times: int) -> int:
    """Of an epoch of so many elements again and again; as in tf.data, one of an unknown number has some."""
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


def behind(stage: Stage, count: int) -> int:
    """How many elements a stage makes of so many."""
    match stage:
        case Take():
            return taken(stage.count, count)
        case Skip(count=-1):
            return 0
        case Map() | Parse() | Enumerate() | Scan() | Conform():
            return count
        case Skip() | Shard() | Batch() | PaddedBatch() | RaggedBatch() | CyclicBatch() | Window():
            return count if count < 0 else of_known(stage, count)
        case _:
            return UNKNOWN_CARDINALITY


def taken(most: int, count: int) -> int:
    """Of so many elements the first ones."""
    if most < 0 or count == 0:
        return count
    if count == INFINITE_CARDINALITY or most == 0:
        return most
    return count if count < 0 else min(most, count)


def of_known(stage: Any, count: int) -> int:
    """How many elements a stage makes of a known number."""
    match stage:
        case Skip():
            return max(0, count - stage.count)
        case Shard():
            return len(range(stage.index, count, stage.num_shards))
        case Window():
            last = stage.reach if stage.drop_remainder else 1
            return max(0, (count - last) // stage.shift + 1)
        case CyclicBatch():
            return batches_in_turn(stage, count)
        case _:
            whole: int = count // stage.batch_size
            return whole if stage.drop_remainder else whole + (count % stage.batch_size > 0)


def batches_in_turn(stage: CyclicBatch, count: int) -> int:
    """How many batches of several sizes so many elements make."""
    rounds, rest = divmod(count, sum(stage.batch_sizes))
    batches = rounds * len(stage.batch_sizes)
    for size in stage.batch_sizes:
        if rest < size:
            break
        batches, rest = batches + 1, rest - size
    return batches + (rest > 0 and not stage.drop_remainder)
