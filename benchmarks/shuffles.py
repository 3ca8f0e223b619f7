"""Shuffles as pure functions: which record comes when, of ours and of other loaders, with the same
memory.

Each takes how many records there are, in how many shards, how many fit in memory, and a seed; and
gives the numbers of the records in their order. The algorithms of others are written anew from
their documentation and source:

- tf.data: `shuffle(n)` over shards in order, one after the other, or sixteen at a time
  (`interleave`).
- WebDataset: shards in random order, each read to its end, then a buffer of n.
- MosaicML Streaming's py1e: shards in random order, in each of them records too; each record is
  then moved by up to half of what the memory holds beside its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from streamrec.pipeline.sources.global_shuffle.lanes import CLASSES, LANES, LaneOrder, Lanes
from streamrec.pipeline.sources.global_shuffle.order import ExactOrder, cut_blocks

__all__ = ["SHUFFLES", "Order"]

Order = npt.NDArray[np.int64]


def permutation(total: int, shards: int, memory: int, seed: int) -> Order:
    """A true permutation, which holds all records."""
    return np.random.default_rng(seed).permutation(total)


def exact(total: int, shards: int, memory: int, seed: int) -> Order:
    """Our "exact"."""
    return ExactOrder(total, seed, 0).records(np.arange(total))


def blocks(total: int, shards: int, memory: int, seed: int) -> Order:
    """Our "blocks", with a global batch of 256."""
    records = np.full(shards, total // shards, np.int64)
    bounds = cut_blocks(records, records, max(1, memory // LANES))
    order = LaneOrder(bounds=bounds, seed=seed, epoch=0, lanes=Lanes(256, CLASSES))
    return order.records(np.arange(total))


def buffered(stream: Order, memory: int, seed: int) -> Order:
    """A shuffle buffer: for each record that comes, a random one of those held leaves."""
    chance = np.random.default_rng(seed).random(len(stream))
    held, out = stream[:memory].tolist(), []
    for index, record in enumerate(stream[memory:].tolist()):
        chosen = int(chance[index] * memory)
        out.append(held[chosen])
        held[chosen] = record
    np.random.default_rng(seed + 1).shuffle(held)
    return np.array(out + held, np.int64)


def tf_data(total: int, shards: int, memory: int, seed: int) -> Order:
    """tf.data's `shuffle(n)`, shards one after the other."""
    return buffered(np.arange(total), memory, seed)


def tf_data_interleaved(total: int, shards: int, memory: int, seed: int) -> Order:
    """tf.data's `shuffle(n)` behind sixteen shards at a time, in random order."""
    return buffered(
        interleaved(shuffled_shards(total, shards, seed), min(16, shards)), memory, seed
    )


def webdataset(total: int, shards: int, memory: int, seed: int) -> Order:
    """WebDataset's shard shuffle, and a buffer of n."""
    return buffered(shuffled_shards(total, shards, seed).ravel(), memory, seed)


def py1e(total: int, shards: int, memory: int, seed: int) -> Order:
    """MosaicML Streaming's py1e, with one canonical node and a block size of the memory."""
    chance = np.random.default_rng(seed)
    order = shuffled_shards(total, shards, seed)
    size = order.shape[1]
    half = max(0, memory - size) / 2
    shifts = chance.uniform(-1, 1, (shards, size)) * half
    starts = np.arange(shards)[:, None] * size
    lowest, highest = -np.minimum(starts, half), np.minimum(total - starts - size, half)
    places = (
        starts
        + chance.permuted(np.tile(np.arange(size), (shards, 1)), axis=1)
        + np.clip(shifts, lowest, highest)
    )
    return order.ravel()[np.argsort(places.ravel(), kind="stable")]


def shuffled_shards(total: int, shards: int, seed: int) -> Order:
    """Shards in random order, [shards, records]."""
    return np.random.default_rng(seed + 2).permutation(
        np.arange(total // shards * shards).reshape(shards, -1)
    )


def interleaved(shards: Order, cycle: int) -> Order:
    """Records of so many shards in turn, then of the next ones."""
    return np.concatenate(
        [shards[first : first + cycle].T.ravel() for first in range(0, len(shards), cycle)]
    )


SHUFFLES: Mapping[str, Callable[[int, int, int, int], Order]] = {
    "permutation": permutation,
    "exact": exact,
    "blocks": blocks,
    "py1e": py1e,
    "tf.data, 16 shards in turn": tf_data_interleaved,
    "webdataset": webdataset,
    "tf.data": tf_data,
}
