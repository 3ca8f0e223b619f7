"""The index of shards that are read anyway: who reads a shard whole knows the length of each of its records.

Rules:
- A shard counts when one reader has read it from its first byte to its last, without compression and without a loss.
- An index is written when all of its shards are known, and once. Until then nothing is, and what is known stays: an
  epoch that was left early, or resumed in the middle, is completed by the next one.
- Where several readers have shares of the shards, each writes a part (`part_of`). Whoever finds all parts there joins
  them; where two do, both write the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from streamrec.shards.index.assemble import assemble
from streamrec.shards.index.encoder import IndexedShard, portable
from streamrec.shards.index.write_index import join_parts, part_of
from streamrec.shards.listing.assignment import Portion
from streamrec.shards.manifests.manifest import ShardInfo
from streamrec.shards.options import ShardPlace
from streamrec.storage import ObjectInfo, Storages
from streamrec.tfrecord import LengthPacker, PackedLengths

__all__ = ["IndexGathering"]

logger = logging.getLogger("streamrec")

NOT_WHOLE: Final = "it was not read from its beginning to its end yet; the next epoch does that"


class IndexGathering:
    """What is known of the shards of one data set.

    Args:
        url: The URL of the index.

    Attributes:
        done: The index, or this reader's part of it, is written.
    """

    def __init__(self, url: str) -> None:
        self.done = False
        self._url = url
        self._known: dict[str, IndexedShard] = {}
        self._refused: dict[str, str] = {}

    def lengths_of(self, portion: Portion, place: ShardPlace, compression_type: str) -> LengthPacker | None:
        """What takes the lengths of a shard that is read; None where not all of them will come by.

        Args:
            portion: What is read of it.
            place: Where reading begins.
            compression_type: How it is compressed.
        """
        if compression_type:
            self._refused[portion.path] = "it is compressed; streamrec reshard writes it anew without"
        elif portion != Portion(portion.path):
            self._refused[portion.path] = "several readers share it; streamrec index reads it whole"
        elif not place.offset:
            return LengthPacker()
        return None

    def add(self, shard: ObjectInfo, lengths: PackedLengths) -> None:
        """A shard was read to its end."""
        if lengths.end != shard.size:
            self._refused[shard.path] = "damage in it was left out"
            return
        info = ShardInfo(portable(self._url, shard.path), lengths.records, lengths.end, None, version=shard.version)
        self._known[shard.path] = IndexedShard(info, lengths)

    async def write(self, storages: Storages, paths: Sequence[str], part: tuple[int, int]) -> None:
        """Writes the index, if all is known.

        Args:
            storages: Where it goes.
            paths: The shards, in order.
            part: Which reader's they are, and how many readers there are.

        Raises:
            StorageError: The store failed, and retrying did not help.
        """
        missing = next((path for path in paths if path not in self._known), None)
        if missing is not None:
            why = self._refused.get(missing, NOT_WHOLE)
            logger.warning("%s is not written: the records of %s are not known: %s", self._url, missing, why)
            return
        target = self._url if part[1] == 1 else part_of(self._url, *part)
        storage = await storages.at(target)
        jobs = [partial(self._of, path) for path in paths]
        await assemble(storage, target, jobs, pattern=None, overwrite=True, parallel=1)
        self.done = True
        self._known.clear()
        if part[1] > 1:
            wanted = [part_of(self._url, number, part[1]) for number in range(part[1])]
            there = {info.path async for info in storage.list(f"{self._url}.part-")}
            if there.issuperset(wanted):
                await join_parts(storages, self._url, wanted)

    async def _of(self, path: str) -> IndexedShard:
        return self._known[path]
