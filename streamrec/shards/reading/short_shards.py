"""Short shards: many small ones read in one step, and framed whole. What is not plainly good, a ShardReader reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamrec import kernels
from streamrec.shards.options import ReadOptions
from streamrec.storage import ObjectInfo, Storage
from streamrec.tfrecord import Frames, as_spans

__all__ = ["ShortShard", "may_be_short", "read_short_shards"]


@dataclass(frozen=True, slots=True)
class ShortShard:
    """A small shard without compression, whole.

    Args:
        info: The object.
        frames: All of its records, at least one.
    """

    info: ObjectInfo
    frames: Frames


def may_be_short(storage: Storage, options: ReadOptions) -> bool:
    """Whether shards may be read so: from such a store, and with no wish that only a reader fulfils."""
    return storage.reads_short and options.block_bytes is None and not options.compression_type


async def read_short_shards(storage: Storage, paths: Sequence[str], options: ReadOptions) -> list[ShortShard | None]:
    """Each of these shards, whole; None for each that a ShardReader has to read: nothing is said of it here."""
    shards: list[ShortShard | None] = []
    for short in await storage.read_short(paths):
        frames = None if short is None else framed(short.data, options)
        shards.append(None if short is None or frames is None else ShortShard(short.info, frames))
    return shards


def framed(data: bytes, options: ReadOptions) -> Frames | None:
    """The records of a whole shard; None where it has none, or is compressed, damaged or cut off."""
    spans, end, code, _ = kernels.scan_frames(data, 0, options.verify, options.max_record_bytes)
    if code != kernels.OK or end != len(data) or not data:
        return None
    return Frames(data, as_spans(spans), 0)
