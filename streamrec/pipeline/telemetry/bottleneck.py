"""The bottleneck: what limits a run, decided from its figures alone.

The rule:
1. Nobody has asked for anything yet: "nothing yet".
2. The consumer waited for less than a tenth of its time, or for less time than the pipeline waited for it: it is
   "the consumer". The pipeline waits for its consumer whenever nobody asks its last stage for a chunk.
3. Else it is in the pipeline. In the last chain, what took most of the time in which a chunk was asked for: a stage, or
   the source. A stage is named by its verb, and by the user's function where it calls one.
4. If it is a source that runs chains of its own: itself where it worked for longer than it waited for them, else the
   chain that was asked for longest, by the same rule from 3 on.
5. If it is a source that reads: "reading: framing and checksums" where the event loop's thread worked for most of the
   time, else where its bytes come from: "the network", "the disk". A source that calls a function of the user's, or
   reads where no store is, is named like a stage.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from streamrec.pipeline.telemetry.snapshots import ChainStats, StageStats

__all__ = ["CONSUMER", "DISK", "LEAST_WAIT", "NETWORK", "NOTHING", "READING", "bottleneck"]

LEAST_WAIT: Final = 0.1
"""A consumer that waits for a smaller share of its time is not held up."""

NOTHING: Final = "nothing yet"
CONSUMER: Final = "the consumer"
NETWORK: Final = "the network"
DISK: Final = "the disk"
READING: Final = "reading: framing and checksums"

LOCAL: Final = frozenset({"file", "local"})
NO_WIRE: Final = frozenset({"memory"})


def bottleneck(chain: ChainStats, waited: float, seconds: float, backends: Collection[str]) -> str:
    """What limits a run; the rule stands at the top of this file.

    Args:
        chain: The run's figures.
        waited: Seconds that the consumer waited.
        seconds: Seconds since it first asked.
        backends: The kinds of stores that were read ("s3", "file").

    >>> source = StageStats("TFRecordDataset", "Shards(...)", busy=1.0, waited_for_input=2.0)
    >>> stage = StageStats("map: your function f", "Map(f)", busy=5.0)
    >>> bottleneck(ChainStats((source, stage), asked=8.0), waited=7.0, seconds=9.0, backends=["s3"])
    'map: your function f'
    >>> bottleneck(ChainStats((source, stage), asked=8.0), waited=0.5, seconds=9.0, backends=["s3"])
    'the consumer'
    """
    if not seconds:
        return NOTHING
    if waited < LEAST_WAIT * seconds or waited < seconds - chain.asked:
        return CONSUMER
    return slowest(chain, backends)


def slowest(chain: ChainStats, backends: Collection[str]) -> str:
    """What took most of the time in which a chain's chunks were asked for."""
    source, *stages = chain.stages
    stage = max(stages, key=lambda stage: stage.busy, default=None)
    if stage is not None and stage.busy > source.busy + source.waited_for_input:
        return stage.title
    if not source.chains:
        return reading(source, backends)
    if source.busy > source.waited_for_input:
        return source.title
    return slowest(max(source.chains, key=lambda inner: inner.asked), backends)


def reading(source: StageStats, backends: Collection[str]) -> str:
    """What a source that has no chains of its own spent its time with."""
    stores = set(backends) - NO_WIRE
    if not backends or ":" in source.title:
        return source.title
    if source.busy > source.waited_for_input or not stores:
        return READING
    return DISK if stores <= LOCAL else NETWORK
