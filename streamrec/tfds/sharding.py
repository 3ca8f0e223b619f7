"""How many shards a split has, and which records each of them gets. Pure.

Records keep their order: each shard has the records that follow those of the shard before.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

OVERHEAD: Final = 16
"""What a frame adds to a record, in bytes."""

MIN_SHARD_BYTES: Final = 64 << 20
MAX_SHARD_BYTES: Final = 1 << 30
"""The sizes between which TensorFlow Datasets chooses."""

USUAL: Final = 1024
"""The number of shards that TensorFlow Datasets prefers."""

Lengths = npt.NDArray[np.int64]


def count_shards(nbytes: int, records: int) -> int:
    """How many shards TensorFlow Datasets would write for records of `nbytes` together.

    Shards have 64 MiB to 1 GiB where that is possible, and their number is a power of two up to
    1024, or a multiple of 1024.

    Examples:
        >>> count_shards(10 << 20, 1000), count_shards(1 << 30, 1_000_000)
        (1, 16)
    """
    total = nbytes + OVERHEAD * records
    most = total // MIN_SHARD_BYTES
    least = total // MAX_SHARD_BYTES
    if least > USUAL:
        # Its own rule never ends if there are fewer records than shards.
        return min(records, USUAL * max(2, -(-least // USUAL)))
    numbers = (USUAL >> step for step in range(USUAL.bit_length() - 1))
    return next((n for n in numbers if least <= n <= most and n <= records), 1)


def shard_lengths(
    lengths: Lengths, num_shards: int | None = None, max_shard_bytes: int | None = None
) -> tuple[int, ...]:
    """The number of records of each shard.

    Args:
        lengths: The number of bytes of each record, int64 of shape `[records]`; not empty.
        num_shards: How many shards; not more than records.
        max_shard_bytes: A record that would exceed this, with frames, begins the next shard. With
            neither, the number of shards is that of `count_shards`.

    Examples:
        >>> shard_lengths(np.full(23, 100), num_shards=3)
        (8, 7, 8)
        >>> shard_lengths(np.full(5, 100), max_shard_bytes=250)
        (2, 2, 1)
    """
    if max_shard_bytes is not None:
        return lengths_up_to(lengths, max_shard_bytes)
    records = len(lengths)
    count = num_shards or count_shards(int(lengths.sum()), records)
    count = min(count, records)
    # The bounds are rounded as TensorFlow Datasets does, half to even.
    bounds = [round(records * number / count) for number in range(count + 1)]
    return tuple(after - before for before, after in zip(bounds, bounds[1:], strict=False))


def lengths_up_to(lengths: Lengths, max_shard_bytes: int) -> tuple[int, ...]:
    """The number of records of each shard of at most so many bytes, or of one long record."""
    ends = np.cumsum(lengths + OVERHEAD)
    found = []
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + max_shard_bytes, "right"))
        last = max(first + 1, fitting)
        found.append(last - first)
        first = last
    return tuple(found)
