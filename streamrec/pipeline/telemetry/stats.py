"""Stats: a frozen snapshot of a run's statistics, which prints as a table and names the bottleneck.

Counters never decrease between two snapshots of one run. `later.since(earlier)` is the difference.

The seconds of a source or stage, in wall time:
- `busy`: it worked. For a source that reads (without chains of its own): the time that the event
  loop's thread worked while the source was asked for a chunk, including framing and checksums.
- `waited_for_input`: later stages wanted a chunk, and the earlier stages (or the store) had none.
- `waited_for_output`: it had given a chunk, and was not asked for the next: later stages were busy,
  or a queue full.

The bottleneck follows from these numbers:
1. "nothing yet", if nothing was asked for yet.
2. "the consumer", if it waited for less than a tenth of its time, or for less time than the
pipeline waited for it. The
   pipeline waits for its consumer whenever its last stage is not asked for a chunk.
3. Otherwise the stage or source that took most of the time in which the last chain was asked for a
chunk. A stage is
   named by its verb, and by the user's function if it has one.
4. If this is a source with chains of its own: the source if it worked for longer than it waited for
them; otherwise the
   chain that was asked for longest, by rule 3.
5. If this is a source that reads: "reading: framing and checksums" if the event loop's thread
worked most of the time;
   otherwise where the bytes come from: "the network", "the disk", or "the cache's disk" if readers
   waited for it longer than for the stores behind it. A source that calls a user's
   function, or reads from no store, is named like a stage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from streamrec import html
from streamrec.storage import Counts, Snapshot
from streamrec.storage.counters import (
    Metric,
    counter,
    explain_counters,
    level,
    metrics_of,
    subtract_counters,
)
from streamrec.store_kinds import kind_of_protocol


@explain_counters
@dataclass(frozen=True, slots=True, kw_only=True)
class StageStats:
    """The statistics of one source or stage.

    The top of this file says how its time is divided. A source without chains has no input here:
    see `Stats.storage`. An element of a batched pipeline is a batch.

    Attributes:
        title: Its name for users: "batch", "map: your function resize".
        line: Its line in the pipeline's description.
        chains: The chains that a source runs.
    """

    title: str
    line: str
    elements_in: int = counter("1", "Elements that a stage got.", of="stage")
    bytes_in: int = counter("By", "Bytes that a stage got.", of="stage")
    elements_out: int = counter("1", "Elements that a stage gave.", of="stage")
    bytes_out: int = counter("By", "Bytes that a stage gave.", of="stage")
    busy: float = counter("s", "Time that a stage worked.", of="stage")
    waited_for_input: float = counter("s", "Time that a stage had nothing to work on.", of="stage")
    waited_for_output: float = counter("s", "Time that what a stage had was not taken.", of="stage")
    queued: int = level("Bytes in its queues; 0 without queues.")
    queue_limit: int = level("How many bytes its queues may hold.")
    chains: tuple[ChainStats, ...] = ()
    errors_ignored: int = counter(
        "1", "Elements that failed and were left out by ignore_errors.", of="stage"
    )

    def since(self, earlier: StageStats | None) -> StageStats:
        """The difference to an earlier snapshot; queues are not subtracted."""
        if earlier is None:
            return self
        counters = subtract_counters(self, earlier)
        # A source may have started chains since.
        before = (*earlier.chains, *[None] * len(self.chains))
        chains = tuple(chain.since(old) for chain, old in zip(self.chains, before, strict=False))
        return replace(self, **counters, chains=chains)


@dataclass(frozen=True, slots=True)
class ChainStats:
    """The statistics of a chain.

    Attributes:
        stages: The source, then the stages.
        asked: For how many seconds the chain's next chunk was awaited.
    """

    stages: tuple[StageStats, ...]
    asked: float = 0.0

    @property
    def source(self) -> StageStats:
        return self.stages[0]

    def since(self, earlier: ChainStats | None) -> ChainStats:
        """The difference to an earlier snapshot."""
        if earlier is None:
            return self
        pairs = zip(self.stages, earlier.stages, strict=True)
        return ChainStats(
            tuple(stage.since(before) for stage, before in pairs), self.asked - earlier.asked
        )

    def rows(self, depth: int = 0) -> Iterator[tuple[int, StageStats]]:
        """All sources and stages in the order in which elements pass, each with its depth."""
        inner = self.source.chains
        for chain in inner:
            yield from chain.rows(depth + (len(inner) > 1))
        yield from ((depth, stage) for stage in self.stages)

    def readers(self) -> Iterator[StageStats]:
        """The sources without chains of their own."""
        if not self.source.chains:
            yield self.source
        for chain in self.source.chains:
            yield from chain.readers()


NOTHING: Final = "nothing yet"
CONSUMER: Final = "the consumer"
NETWORK: Final = "the network"
DISK: Final = "the disk"
CACHE_DISK: Final = "the cache's disk"
READING: Final = "reading: framing and checksums"

CACHE: Final = "cache"
"""The name of the cache's disk among the stores."""


def find_bottleneck(
    chain: ChainStats, waited: float, seconds: float, backends: Collection[str]
) -> str:
    """The bottleneck by the rules at the top of this file; the consumer first asked `seconds` ago.

    >>> source = StageStats(
    ...     title="TFRecordDataset", line="Shards(...)", busy=1.0, waited_for_input=2.0
    ... )
    >>> stage = StageStats(title="map: your function f", line="Map(f)", busy=5.0)
    >>> chain = ChainStats((source, stage), asked=8.0)
    >>> find_bottleneck(chain, waited=7.0, seconds=9.0, backends=["s3"])
    'map: your function f'
    >>> find_bottleneck(chain, waited=0.5, seconds=9.0, backends=["s3"])
    'the consumer'
    """
    if not seconds:
        return NOTHING
    if waited < 0.1 * seconds or waited < seconds - chain.asked:
        return CONSUMER
    return slowest(chain, backends)


def slowest(chain: ChainStats, backends: Collection[str]) -> str:
    """The bottleneck of a chain by rules 3 and 4."""
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
    """The bottleneck of a source without chains by rule 5."""
    media = {kind_of_protocol(protocol).medium for protocol in backends} - {"memory"}
    if not backends or ":" in source.title:
        return source.title
    if source.busy > source.waited_for_input or not media:
        return READING
    if set(backends) == {CACHE}:
        return CACHE_DISK
    return DISK if media == {"disk"} else NETWORK


def awaited_stores(backends: Mapping[str, Counts]) -> Collection[str]:
    """The stores that readers waited for: the cache's disk, or those behind it.

    >>> disk, store = Counts(waited_for_store=2.0), Counts(waited_for_store=1.0)
    >>> awaited_stores({"s3": store, "cache": disk}), awaited_stores({"s3": disk, "cache": store})
    (['cache'], ['s3'])
    """
    cached = backends.get(CACHE)
    others = [name for name in backends if name != CACHE]
    waited = sum(backends[name].waited_for_store for name in others)
    return [CACHE] if cached is not None and cached.waited_for_store > waited else others


@explain_counters
@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The statistics of a run at one moment.

    Attributes:
        chain: The statistics of sources and stages.
        storage: Requests, bytes and retries of the stores, and the requests that wait for a retry.
    """

    elements: int = counter(
        "1", "Elements that the consumer has taken.", required=True, exported=False
    )
    bytes: int = counter(
        "By",
        "About how many bytes they have, counted in whole chunks.",
        required=True,
        exported=False,
    )
    consumer_waited: float = counter("s", "Time that the consumer waited for data.", required=True)
    consumer_busy: float = counter(
        "s", "Time that the consumer worked between two requests.", required=True
    )
    queued: int = level("Bytes that wait for the consumer.", default=None)
    queue_limit: int = level("How many bytes may wait for it.", default=None)
    chain: ChainStats
    storage: Snapshot
    samples: int = counter("1", "Rows of batches, or single elements, that a loader gave.")
    tokens: int = counter("1", "Tokens of these, which a loader counts with `tokens=`.")
    readers: int = level(
        "Of how many readers, the workers of a DataLoader, this is the sum.", default=1
    )

    @property
    def seconds(self) -> float:
        """The seconds since the consumer first asked, up to now or to its end; summed over the
        readers.
        """
        return self.consumer_waited + self.consumer_busy

    @property
    def samples_per_second(self) -> float:
        """The samples that the consumer took per second, of all readers together; 0.0 before it
        began.
        """
        return self.samples * self.readers / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """The tokens that the consumer took per second, of all readers together; 0.0 before it
        began.
        """
        return self.tokens * self.readers / self.seconds if self.seconds else 0.0

    @property
    def waited_share(self) -> float:
        """The fraction of its time that the consumer waited, 0.0 to 1.0; 0.0 before it began."""
        return self.consumer_waited / self.seconds if self.seconds else 0.0

    @property
    def stages(self) -> tuple[StageStats, ...]:
        """All sources and stages in the order in which elements pass.

        The rows of a source's chains come before the source's.
        """
        return tuple(stage for _, stage in self.chain.rows())

    @property
    def records(self) -> int:
        """How many elements came from the sources without chains of their own.

        They are records if these sources read shards.
        """
        return sum(source.elements_out for source in self.chain.readers())

    @property
    def bytes_read(self) -> int:
        """How many bytes the stores delivered.

        Without stores, the bytes that the first sources gave.
        """
        read = sum(counts.bytes for counts in self.storage.backends.values())
        return read or sum(source.bytes_out for source in self.chain.readers())

    @property
    def bottleneck(self) -> str:
        """What limits the run: "the network", "map: your function resize", "the consumer", ..."""
        return find_bottleneck(
            self.chain,
            self.consumer_waited,
            self.seconds,
            awaited_stores(self.storage.backends),
        )

    def counters(self) -> Iterator[tuple[Metric, Sequence[tuple[dict[str, Any], float]]]]:
        """All counters for exporters, each with its labeled values."""
        yield from self.storage.counters()
        for metric in metrics_of(Stats):
            yield metric, [({}, getattr(self, metric.field))]
        rows = [
            ({"row": row, "stage": stage.title}, stage) for row, stage in enumerate(self.stages)
        ]
        for metric in metrics_of(StageStats):
            yield metric, [(labels, getattr(stage, metric.field)) for labels, stage in rows]

    def since(self, earlier: Stats) -> Stats:
        """The difference to an earlier snapshot of the same run.

        Queues and `storage` are not subtracted.
        """
        return replace(
            self, **subtract_counters(self, earlier), chain=self.chain.since(earlier.chain)
        )

    def _repr_html_(self) -> str:
        """A table with bars, for notebooks."""
        consumer = StageStats(
            title="consumer",
            line="",
            elements_out=self.elements,
            bytes_out=self.bytes,
            busy=self.consumer_busy,
            waited_for_input=self.consumer_waited,
            queued=self.queued,
            queue_limit=self.queue_limit,
        )
        return chart(self.chain, consumer, self.bottleneck)

    def __str__(self) -> str:
        """A table for people, and the bottleneck."""
        consumer = (
            f"consumer: took {self.elements:,} in {self.seconds:,.1f} s; waited "
            f"{self.consumer_waited:,.1f} s"
        )
        queue = f"; {self.queued / 1e6:,.1f} of {self.queue_limit / 1e6:,.0f} MB wait for it"
        consumer += format_speed(self)
        waits = [str(wait) for wait in self.storage.waits[:1]]
        return "\n".join(
            (table(self.chain), consumer + queue, f"bottleneck: {self.bottleneck}", *waits)
        )


def format_speed(stats: Stats) -> str:
    """The samples and tokens per second for a line of text; nothing if none were counted."""
    counted = (
        (stats.samples, stats.samples_per_second, "samples/s"),
        (stats.tokens, stats.tokens_per_second, "tokens/s"),
    )
    return "".join(f", {speed:,.0f} {unit}" for count, speed, unit in counted if count)


HEAD: Final = (
    "",
    "elements in",
    "out",
    "MB in",
    "out",
    "busy s",
    "no input",
    "no output",
    "queue MB",
)
PARTS: Final = (("busy", "busy"), ("input", "waited for input"), ("output", "waited for output"))


def chart(chain: ChainStats, consumer: StageStats, bottleneck: str) -> str:
    """HTML with a row and a bar for each source, each stage and the consumer.

    The bottleneck is below them.
    """
    seconds = consumer.busy + consumer.waited_for_input
    key = [
        html.element("span", f'<span class="key {kind}"></span>', html.text(label))
        for kind, label in PARTS
    ]
    rows = [chart_row(depth, stage, seconds) for depth, stage in (*chain.rows(), (0, consumer))]
    footer = html.element("div", "bottleneck: ", html.element("b", html.text(bottleneck)))
    head = ["", "elements", "MB", f"of {seconds:,.2f} s", "queue"]
    return html.fragment(html.table(head, rows), html.element("div", *key), footer)


def chart_row(depth: int, stage: StageStats, seconds: float) -> tuple[str, ...]:
    """The cells of a stage's row in HTML; its bar is relative to `seconds` of the consumer."""
    queue = (
        f"{stage.queued / 1e6:,.1f} of {stage.queue_limit / 1e6:,.0f} MB"
        if stage.queue_limit
        else ""
    )
    name = html.element("span", "&emsp;" * depth, html.text(stage.title), tip=stage.line)
    amounts = (stage.busy, stage.waited_for_input, stage.waited_for_output)
    tip = ", ".join(
        f"{label} {amount:,.2f} s" for (_, label), amount in zip(PARTS, amounts, strict=True)
    )
    parts = [(kind, amount) for (kind, _), amount in zip(PARTS, amounts, strict=True)]
    bar = html.bar(parts, max(seconds, sum(amounts)), tip)
    return name, f"{stage.elements_out:,}", f"{stage.bytes_out / 1e6:,.1f}", bar, queue


def table(chain: ChainStats) -> str:
    """A text table with a row for each source and stage, in the order in which elements pass.

    >>> source = StageStats(
    ...     title="range", line="Range(0, 9)", elements_out=9, bytes_out=72, waited_for_output=1.5
    ... )
    >>> stage = StageStats(
    ...     title="batch", line="Batch(4)", elements_in=9, bytes_in=72, elements_out=3,
    ...     bytes_out=96, busy=1.5, waited_for_input=0.1,
    ... )
    >>> print(table(ChainStats((source, stage))))
                 elements in  out  MB in  out  busy s  no input  no output  queue MB
    Range(0, 9)            0    9    0.0  0.0     0.0       0.0        1.5
    Batch(4)               9    3    0.0  0.0     1.5       0.1        0.0
    """
    rows = [HEAD, *(tuple(cells(depth, stage)) for depth, stage in chain.rows())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(line(row, widths) for row in rows)


def cells(depth: int, stage: StageStats) -> Iterator[str]:
    """The cells of a stage's row in a text table, indented by the depth of its chain."""
    name = f"{'  ' * depth}{stage.line}"
    yield name if len(name) <= 44 else f"{name[:43]}…"
    yield from (f"{count:,}" for count in (stage.elements_in, stage.elements_out))
    yield from (f"{count / 1e6:,.1f}" for count in (stage.bytes_in, stage.bytes_out))
    yield from (
        f"{value:,.1f}" for value in (stage.busy, stage.waited_for_input, stage.waited_for_output)
    )
    yield (
        f"{stage.queued / 1e6:,.1f} of {stage.queue_limit / 1e6:,.1f}" if stage.queue_limit else ""
    )


def line(row: Sequence[str], widths: Sequence[int]) -> str:
    """A row of a text table: the first cell to the left, numbers to the right."""
    name, *numbers = (
        cell.rjust(width) if index else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join((name, *numbers)).rstrip()
