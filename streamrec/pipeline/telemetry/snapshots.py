"""Snapshots of the figures of the parts of a run, frozen: of a source or a stage, and of a chain of them.

What their seconds mean, on the wall's clock:
- `busy`: it worked. For a source that reads (it has no chains of its own): what the event loop's thread worked while
  the source was asked for a chunk, framing and checksums among it.
- `waited_for_input`: those behind it wanted a chunk, and what precedes it (or the store) had none.
- `waited_for_output`: it had given a chunk, and nobody asked for the next: what follows it was busy, or its queue full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from streamrec.storage.statistics import Metric

__all__ = ["COUNTERS", "ChainStats", "StageStats"]

COUNTERS: Final = (
    Metric("elements_in", "elements_in", "1", "Elements that a stage got."),
    Metric("bytes_in", "bytes_in", "By", "Bytes that a stage got."),
    Metric("elements_out", "elements_out", "1", "Elements that a stage gave."),
    Metric("bytes_out", "bytes_out", "By", "Bytes that a stage gave."),
    Metric("busy", "busy_seconds", "s", "Time that a stage worked."),
    Metric("waited_for_input", "waited_for_input_seconds", "s", "Time that a stage had nothing to work on."),
    Metric("errors_ignored", "errors_ignored", "1", "Elements that failed and were left out by ignore_errors."),
    Metric("waited_for_output", "waited_for_output_seconds", "s", "Time that nobody took what a stage had."),
)
"""The numbers of `StageStats` that never fall, as exporters name them."""


@dataclass(frozen=True, slots=True)
class StageStats:
    """One source or stage, as it stands.

    Attributes:
        title: What its user calls it: "batch", "map: your function resize".
        line: Its line in the pipeline's description.
        elements_in, bytes_in: What it got; 0 for a source that has no chains: see `Stats.storage`.
        elements_out, bytes_out: What it gave. An element of a batched pipeline is a batch.
        busy, waited_for_input, waited_for_output: Seconds; the top of `snapshots.py` says which.
        queued, queue_limit: Bytes in its queues, and how many these may hold; 0 where it has none.
        chains: The chains that a source runs.
        errors_ignored: Elements that failed, and that `ignore_errors` left out.
    """

    title: str
    line: str
    elements_in: int = 0
    bytes_in: int = 0
    elements_out: int = 0
    bytes_out: int = 0
    busy: float = 0.0
    waited_for_input: float = 0.0
    waited_for_output: float = 0.0
    queued: int = 0
    queue_limit: int = 0
    chains: tuple[ChainStats, ...] = ()
    errors_ignored: int = 0

    def since(self, earlier: StageStats | None) -> StageStats:
        """What it did since then; how its queues stand is of now."""
        if earlier is None:
            return self
        return replace(
            self,
            elements_in=self.elements_in - earlier.elements_in,
            bytes_in=self.bytes_in - earlier.bytes_in,
            elements_out=self.elements_out - earlier.elements_out,
            bytes_out=self.bytes_out - earlier.bytes_out,
            busy=self.busy - earlier.busy,
            waited_for_input=self.waited_for_input - earlier.waited_for_input,
            waited_for_output=self.waited_for_output - earlier.waited_for_output,
            chains=tuple(
                chain.since(earlier.chains[index] if index < len(earlier.chains) else None)
                for index, chain in enumerate(self.chains)
            ),
        )


@dataclass(frozen=True, slots=True)
class ChainStats:
    """A source and the stages behind it.

    Attributes:
        stages: The source, then the stages.
        asked: Seconds in which somebody waited for the chain's next chunk.
    """

    stages: tuple[StageStats, ...]
    asked: float = 0.0

    @property
    def source(self) -> StageStats:
        """Its first."""
        return self.stages[0]

    def since(self, earlier: ChainStats | None) -> ChainStats:
        """What it did since then."""
        if earlier is None:
            return self
        pairs = zip(self.stages, earlier.stages, strict=True)
        return ChainStats(tuple(stage.since(before) for stage, before in pairs), self.asked - earlier.asked)

    def rows(self, depth: int = 0) -> Iterator[tuple[int, StageStats]]:
        """All sources and stages in the order in which elements pass, each with its depth."""
        inner = self.source.chains
        for chain in inner:
            yield from chain.rows(depth + (len(inner) > 1))
        yield from ((depth, stage) for stage in self.stages)

    def readers(self) -> Iterator[StageStats]:
        """The sources that have no chains of their own."""
        if not self.source.chains:
            yield self.source
        for chain in self.source.chains:
            yield from chain.readers()
