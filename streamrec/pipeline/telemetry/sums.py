"""Adds up the statistics of several readers, such as the workers of a DataLoader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import zip_longest

from streamrec.pipeline.telemetry.stats import ChainStats, StageStats, Stats
from streamrec.storage import Counts, Distribution, Snapshot
from streamrec.storage.counters import sum_counters


def sum_stats(parts: Sequence[Stats]) -> Stats:
    """The statistics of all readers together, of which there is at least one.

    Seconds are added, too: those of two readers that each waited for a second are two.
    """
    return replace(
        parts[0],
        **sum_counters(parts),
        chain=reduce(add_chains, (part.chain for part in parts)),
        storage=sum_snapshots([part.storage for part in parts]),
    )


def add_chains(one: ChainStats, other: ChainStats) -> ChainStats:
    """The sum of two chains of one description."""
    pairs = zip(one.stages, other.stages, strict=True)
    return ChainStats(tuple(add_stages(*pair) for pair in pairs), one.asked + other.asked)


def add_stages(one: StageStats, other: StageStats) -> StageStats:
    """The sum of two stages of one description; one may have started more chains."""
    chains = tuple(
        add_chains(first, second) if first and second else first or second
        for first, second in zip_longest(one.chains, other.chains)
    )
    return replace(one, **sum_counters([one, other]), chains=chains)


def sum_snapshots(parts: Sequence[Snapshot]) -> Snapshot:
    """The sum of what stores did for several readers."""
    names = dict.fromkeys(name for part in parts for name in part.backends)
    return Snapshot(
        {
            name: sum_counts(part.backends[name] for part in parts if name in part.backends)
            for name in names
        },
        tuple(stream for part in parts for stream in part.streams),
        tuple(sorted((wait for part in parts for wait in part.waits), key=lambda w: -w.seconds)),
    )


def sum_counts(parts: Iterable[Counts]) -> Counts:
    """The sum of the counters of one kind of store."""
    counts = list(parts)
    retries: Counter[str] = Counter()
    for part in counts:
        retries.update(part.retries)
    buckets: Counter[float] = Counter()
    for part in counts:
        buckets.update(part.first_byte.counts)
    seconds = sum(part.first_byte.total for part in counts)
    return replace(
        counts[0],
        **sum_counters(counts),
        retries=dict(retries),
        first_byte=Distribution(dict(sorted(buckets.items())), seconds),
    )
