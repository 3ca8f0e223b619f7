"""Portions: the records of parts of shards that somebody dealt already, so that nobody lists them again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.description import Chain, RunContext
from streamrec.pipeline.engine.session import OpenSource
from streamrec.pipeline.sources.shards.distribute import Share
from streamrec.pipeline.sources.shards.ranks import Reader
from streamrec.pipeline.sources.shards.source import Shards, read
from streamrec.pipeline.tfrecord_dataset import TFRecordDataset
from streamrec.shards import Portion, ReadOptions

__all__ = ["Portions", "read_portions"]


def read_portions(portions: Sequence[Portion], **reading: Any) -> Dataset[bytes]:
    """The records of parts of shards, in order. No name is a pattern, and nothing is listed again.

    Args:
        portions: What is read. Each shard is compared with what its portion expects of it.
        reading: How; see `TFRecordDataset`.
    """
    shards = TFRecordDataset((), **reading).chain.source
    assert isinstance(shards, Shards)
    names = tuple(dict.fromkeys(portion.path for portion in portions))
    return Dataset(Chain(Portions(replace(shards, filenames=names), tuple(portions))))


@dataclass(frozen=True, slots=True)
class Portions:
    """The records of these portions, in order.

    Args:
        shards: How they are read; its names are those of the portions.
        portions: What is read.
    """

    shards: Shards
    portions: tuple[Portion, ...]

    def lines(self) -> Iterator[str]:
        yield from self.shards.lines()
        yield f"Portions({self.portions!r})"

    @property
    def options(self) -> ReadOptions:
        """How the shards are read."""
        return self.shards.options

    async def opened(self, within: RunContext) -> OpenSource:
        """The stores, and what is read of them."""
        whole = await self.shards.opened(within)
        return OpenSource(whole.storages, Share(Reader(0, 1), self.portions))

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        """The records, a chunk at a time."""
        async with aclosing(read(self.shards, state, within, await self.opened(within))) as chunks:
            async for chunk in chunks:
                yield chunk
