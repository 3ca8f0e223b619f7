"""Stats: the figures of a run at one moment, frozen. They print as a table and name the bottleneck.

Numbers of two snapshots of one run never fall. `later.since(earlier)` is what happened in between.

What the seconds of a source or stage mean, on the wall's clock:
- `busy`: it worked. For a source that reads (it has no chains of its own): what the event loop's thread worked while
  the source was asked for a chunk, framing and checksums included.
- `waited_for_input`: the stages after it wanted a chunk, and what precedes it (or the store) had none.
- `waited_for_output`: it had given a chunk, and was not asked for the next: what follows was busy, or its queue full.

The bottleneck is decided from these figures alone:
1. Nothing was asked for yet: "nothing yet".
2. The consumer waited for less than a tenth of its time, or for less time than the pipeline waited for it: it is
   "the consumer". The pipeline waits for its consumer whenever its last stage is not asked for a chunk.
3. Else it is in the pipeline. In the last chain, what took most of the time in which a chunk was asked for: a stage, or
   the source. A stage is named by its verb, and by the user's function where it calls one.
4. If it is a source that runs chains of its own: itself where it worked for longer than it waited for them, else the
   chain that was asked for longest, by the same rule from 3 on.
5. If it is a source that reads: "reading: framing and checksums" where the event loop's thread worked for most of the
   time, else where its bytes come from: "the network", "the disk". A source that calls a function of the user's, or
   reads from no store, is named like a stage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from streamrec import html
from streamrec.storage import Snapshot
from streamrec.storage.statistics import Metric

__all__ = ["COUNTERS", "ChainStats", "StageStats", "Stats"]

COUNTERS: Final = (
    Metric("elements_in", "stage.elements_in", "1", "Elements that a stage got."),
    Metric("bytes_in", "stage.bytes_in", "By", "Bytes that a stage got."),
    Metric("elements_out", "stage.elements_out", "1", "Elements that a stage gave."),
    Metric("bytes_out", "stage.bytes_out", "By", "Bytes that a stage gave."),
    Metric("busy", "stage.busy_seconds", "s", "Time that a stage worked."),
    Metric("waited_for_input", "stage.waited_for_input_seconds", "s", "Time that a stage had nothing to work on."),
    Metric("errors_ignored", "stage.errors_ignored", "1", "Elements that failed and were left out by ignore_errors."),
    Metric("waited_for_output", "stage.waited_for_output_seconds", "s", "Time that what a stage had was not taken."),
)
"""The numbers of `StageStats` that never fall, as exporters name them."""

CONSUMER_COUNTERS: Final = (
    Metric("consumer_waited", "consumer_waited_seconds", "s", "Time that the consumer waited for data."),
    Metric("consumer_busy", "consumer_busy_seconds", "s", "Time that the consumer worked."),
)


@dataclass(frozen=True, slots=True)
class StageStats:
    """The figures of one source or stage.

    Attributes:
        title: What its user calls it: "batch", "map: your function resize".
        line: Its line in the pipeline's description.
        elements_in, bytes_in: What it got; 0 for a source that has no chains: see `Stats.storage`.
        elements_out, bytes_out: What it gave. An element of a batched pipeline is a batch.
        busy, waited_for_input, waited_for_output: Seconds; the top of this file says which.
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
        """What it did since an earlier snapshot; its queues are those of now."""
        if earlier is None:
            return self
        counted = {each.field: getattr(self, each.field) - getattr(earlier, each.field) for each in COUNTERS}
        before = (*earlier.chains, *[None] * len(self.chains))  # a source may have begun others since
        chains = tuple(chain.since(was) for chain, was in zip(self.chains, before, strict=False))
        return replace(self, **counted, chains=chains)


@dataclass(frozen=True, slots=True)
class ChainStats:
    """The figures of a source and of the stages after it.

    Attributes:
        stages: The source, then the stages.
        asked: Seconds in which the chain's next chunk was waited for.
    """

    stages: tuple[StageStats, ...]
    asked: float = 0.0

    @property
    def source(self) -> StageStats:
        """The first of them."""
        return self.stages[0]

    def since(self, earlier: ChainStats | None) -> ChainStats:
        """What it did since an earlier snapshot."""
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


NOTHING: Final = "nothing yet"
CONSUMER: Final = "the consumer"
NETWORK: Final = "the network"
DISK: Final = "the disk"
READING: Final = "reading: framing and checksums"

LOCAL: Final = frozenset({"file", "local"})
NO_WIRE: Final = frozenset({"memory"})


def find_bottleneck(chain: ChainStats, waited: float, seconds: float, backends: Collection[str]) -> str:
    """What limits a run, by the rule at the top of this file; the consumer first asked `seconds` ago.

    >>> source = StageStats("TFRecordDataset", "Shards(...)", busy=1.0, waited_for_input=2.0)
    >>> stage = StageStats("map: your function f", "Map(f)", busy=5.0)
    >>> find_bottleneck(ChainStats((source, stage), asked=8.0), waited=7.0, seconds=9.0, backends=["s3"])
    'map: your function f'
    >>> find_bottleneck(ChainStats((source, stage), asked=8.0), waited=0.5, seconds=9.0, backends=["s3"])
    'the consumer'
    """
    if not seconds:
        return NOTHING
    if waited < 0.1 * seconds or waited < seconds - chain.asked:
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
    """What a source that has no chains of its own spent its time on."""
    stores = set(backends) - NO_WIRE
    if not backends or ":" in source.title:
        return source.title
    if source.busy > source.waited_for_input or not stores:
        return READING
    return DISK if stores <= LOCAL else NETWORK


@dataclass(frozen=True, slots=True)
class Stats:
    """The figures of a run at one moment.

    Attributes:
        elements: How many the consumer has taken.
        bytes: About how many bytes these hold, to a chunk.
        consumer_waited: Seconds that the consumer waited for data.
        consumer_busy: Seconds of its own work, between two requests.
        queued, queue_limit: Bytes that wait for the consumer, and how many may.
        chain: What the run consists of.
        storage: What the stores did: requests, bytes, retries; and which requests wait to be tried again.
    """

    elements: int
    bytes: int
    consumer_waited: float
    consumer_busy: float
    queued: int
    queue_limit: int
    chain: ChainStats
    storage: Snapshot

    @property
    def seconds(self) -> float:
        """Seconds since the consumer first asked, up to now or to its end."""
        return self.consumer_waited + self.consumer_busy

    @property
    def waited_share(self) -> float:
        """The share of its time that the consumer waited, 0.0 to 1.0; 0.0 before it began."""
        return self.consumer_waited / self.seconds if self.seconds else 0.0

    @property
    def stages(self) -> tuple[StageStats, ...]:
        """All sources and stages, in the order in which elements pass; those of chains within a source before it."""
        return tuple(stage for _, stage in self.chain.rows())

    @property
    def records(self) -> int:
        """Elements that came from the sources which have no chains of their own: records, where shards are read."""
        return sum(source.elements_out for source in self.chain.readers())

    @property
    def bytes_read(self) -> int:
        """Bytes that the stores delivered; where none is read, bytes that the first sources gave."""
        read = sum(counts.bytes for counts in self.storage.backends.values())
        return read or sum(source.bytes_out for source in self.chain.readers())

    @property
    def bottleneck(self) -> str:
        """What limits the run, in a word or a few: "the network", "map: your function resize", "the consumer", ..."""
        return find_bottleneck(self.chain, self.consumer_waited, self.seconds, self.storage.backends)

    def counters(self) -> Iterator[tuple[Metric, Sequence[tuple[dict[str, Any], float]]]]:
        """All plain numbers that never fall, as exporters take them: each with its values, and the labels of these."""
        yield from self.storage.counters()
        for counter in CONSUMER_COUNTERS:
            yield counter, [({}, getattr(self, counter.field))]
        rows = [({"row": row, "stage": stage.title}, stage) for row, stage in enumerate(self.stages)]
        for counter in COUNTERS:
            yield counter, [(labels, getattr(stage, counter.field)) for labels, stage in rows]

    def since(self, earlier: Stats) -> Stats:
        """What happened since an earlier snapshot of the same run; queues and `storage` are those of now."""
        return replace(
            self,
            elements=self.elements - earlier.elements,
            bytes=self.bytes - earlier.bytes,
            consumer_waited=self.consumer_waited - earlier.consumer_waited,
            consumer_busy=self.consumer_busy - earlier.consumer_busy,
            chain=self.chain.since(earlier.chain),
        )

    def _repr_html_(self) -> str:
        """The same with bars, for notebooks."""
        took = StageStats("consumer", "", elements_out=self.elements, bytes_out=self.bytes, busy=self.consumer_busy)
        queue = replace(took, waited_for_input=self.consumer_waited, queued=self.queued, queue_limit=self.queue_limit)
        return chart(self.chain, queue, self.bottleneck)

    def __str__(self) -> str:
        """A table for people, and the bottleneck."""
        consumer = f"consumer: took {self.elements:,} in {self.seconds:,.1f} s; waited {self.consumer_waited:,.1f} s"
        queue = f"; {self.queued / 1e6:,.1f} of {self.queue_limit / 1e6:,.0f} MB wait for it"
        waits = [str(wait) for wait in self.storage.waits[:1]]
        return "\n".join((table(self.chain), consumer + queue, f"bottleneck: {self.bottleneck}", *waits))


HEAD: Final = ("", "elements in", "out", "MB in", "out", "busy s", "no input", "no output", "queue MB")
PARTS: Final = (("busy", "busy"), ("input", "waited for input"), ("output", "waited for output"))


def chart(chain: ChainStats, consumer: StageStats, bottleneck: str) -> str:
    """A row and a bar for each source and stage, the consumer, and the bottleneck."""
    seconds = consumer.busy + consumer.waited_for_input
    key = [html.element("span", f'<span class="key {kind}"></span>', html.text(told)) for kind, told in PARTS]
    rows = [chart_row(depth, stage, seconds) for depth, stage in chain.rows()]
    rows.append(chart_row(0, consumer, seconds))
    told = html.element("div", "bottleneck: ", html.element("b", html.text(bottleneck)))
    head = ["", "elements", "MB", f"of {seconds:,.2f} s", "queue"]
    return html.fragment(html.table(head, rows), html.element("div", *key), told)


def chart_row(depth: int, stage: StageStats, seconds: float) -> tuple[str, ...]:
    """The cells of a source or stage."""
    queue = f"{stage.queued / 1e6:,.1f} of {stage.queue_limit / 1e6:,.0f} MB" if stage.queue_limit else ""
    name = html.element("span", "&emsp;" * depth, html.text(stage.title), tip=stage.line)
    bar = times(stage.busy, stage.waited_for_input, stage.waited_for_output, seconds)
    return name, f"{stage.elements_out:,}", f"{stage.bytes_out / 1e6:,.1f}", bar, queue


def times(busy: float, waited_for_input: float, waited_for_output: float, seconds: float) -> str:
    """A bar of what the time went into."""
    amounts = (busy, waited_for_input, waited_for_output)
    tip = ", ".join(f"{told} {amount:,.2f} s" for (_, told), amount in zip(PARTS, amounts, strict=True))
    parts = [(kind, amount) for (kind, _), amount in zip(PARTS, amounts, strict=True)]
    return html.bar(parts, max(seconds, sum(amounts)), tip)


def table(chain: ChainStats) -> str:
    """A row for each source and stage, in the order in which elements pass.

    >>> source = StageStats("range", "Range(0, 9)", elements_out=9, bytes_out=72, waited_for_output=1.5)
    >>> stage = StageStats("batch", "Batch(4)", 9, 72, 3, 96, busy=1.5, waited_for_input=0.1)
    >>> print(table(ChainStats((source, stage))))
                 elements in  out  MB in  out  busy s  no input  no output  queue MB
    Range(0, 9)            0    9    0.0  0.0     0.0       0.0        1.5
    Batch(4)               9    3    0.0  0.0     1.5       0.1        0.0
    """
    rows = [HEAD, *(tuple(cells(depth, stage)) for depth, stage in chain.rows())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(line(row, widths) for row in rows)


def cells(depth: int, stage: StageStats) -> Iterator[str]:
    name = f"{'  ' * depth}{stage.line}"
    yield name if len(name) <= 44 else f"{name[:43]}…"
    yield from (f"{count:,}" for count in (stage.elements_in, stage.elements_out))
    yield from (f"{count / 1e6:,.1f}" for count in (stage.bytes_in, stage.bytes_out))
    yield from (f"{value:,.1f}" for value in (stage.busy, stage.waited_for_input, stage.waited_for_output))
    yield f"{stage.queued / 1e6:,.1f} of {stage.queue_limit / 1e6:,.1f}" if stage.queue_limit else ""


def line(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers = (
        cell.rjust(width) if index else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join((name, *numbers)).rstrip()
