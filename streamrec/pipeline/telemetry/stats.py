"""Stats: how a run stands, at one moment. They are printed as a table, and name the bottleneck.

Numbers of two snapshots of one run never fall. `later.since(earlier)` is what happened in between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamrec.pipeline.telemetry.bottleneck import bottleneck
from streamrec.pipeline.telemetry.rendering import chart, table
from streamrec.pipeline.telemetry.snapshots import ChainStats, StageStats
from streamrec.storage import Snapshot

__all__ = ["Stats"]


@dataclass(frozen=True, slots=True)
class Stats:
    """A run, as it stands.

    Attributes:
        elements: How many the consumer has taken.
        bytes: About how many bytes these hold, to a chunk.
        consumer_waited: Seconds that the consumer waited for data.
        consumer_busy: Seconds between its asking: its own work.
        queued, queue_limit: Bytes that wait for the consumer, and how many may.
        chain: What the run consists of.
        storage: What the stores did: requests, bytes, retries.
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
        """Since the consumer first asked, up to now or to its end."""
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
        return bottleneck(self.chain, self.consumer_waited, self.seconds, self.storage.backends)

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
        return "\n".join((table(self.chain), consumer + queue, f"bottleneck: {self.bottleneck}"))
