"""BlockSizes: how many bytes of a shard are received and framed together. Pure.

Rules:
- Blocks grow from 64 KiB to their full size, so that the first record comes with the first bytes.
- A record that is longer than a block gets its memory at once if the shard is known to be that
  long; else step by step, as its bytes arrive: a length alone allocates nothing.
- Where records are wanted in groups, a block ends about where a group does.
"""

from __future__ import annotations

from typing import Final

from streamrec.shards.options import ShardPlace

FIRST_BYTES: Final = 64 << 10
"""Bytes of the first block, and by which factor the next ones are larger."""

GROWTH: Final = 4

GROUP_BLOCKS: Final = 2
"""A block may be up to this many times `block_bytes` long.

Only if it then holds one whole group of records.
"""

KNOWN_STEP: Final = 1 << 30
UNKNOWN_STEP: Final = 16 << 20
"""Bytes of memory that a long record gets at once.

The first number is for a shard that is known to be that long, the second for another one.
"""


class BlockSizes:
    """The sizes of the blocks of one shard.

    Args:
        block_bytes: The full size of a block.
        block_records: How many records make a group; 1 for no groups.
        start: The place of the first record.

    Examples:
        >>> sizes = BlockSizes(block_bytes=1 << 20, block_records=1, start=ShardPlace())
        >>> [sizes.next(ShardPlace(), held=0, wants=12, is_there=True) >> 10 for _ in range(4)]
        [64, 256, 1024, 1024]
    """

    def __init__(self, *, block_bytes: int, block_records: int, start: ShardPlace) -> None:
        self.block_bytes = block_bytes
        self._group = block_records
        self._start = start
        self._next = min(FIRST_BYTES, block_bytes)

    @property
    def most_bytes(self) -> int:
        """The largest size of a block that does not hold a longer single record."""
        return self.block_bytes * (1 if self._group == 1 else GROUP_BLOCKS)

    def restart(self, start: ShardPlace) -> None:
        """The shard is read again from this place on."""
        self._start = start

    def next(self, place: ShardPlace, *, held: int, wants: int, is_there: bool) -> int:
        """Returns how many bytes to receive next: a block, or the rest of a longer record.

        Args:
            place: The next record's place.
            held: How many of its bytes are there.
            wants: How many bytes it needs, as far as that is known.
            is_there: Whether the shard is known to have these bytes.
        """
        block = self._next
        self._next = min(self._next * GROWTH, self.block_bytes)
        records = place.record - self._start.record
        if self._group > 1 and records:
            block = self._end_after_group(block, records, place.offset, held)
        step = KNOWN_STEP if is_there else UNKNOWN_STEP
        return max(block, min(wants - held, max(held, step)))

    def _end_after_group(self, block: int, records: int, offset: int, held: int) -> int:
        """The bytes to about the end of a group, if all records are as long as those so far.

        That is up to a quarter more or less than a block, or one group of at most `GROUP_BLOCKS`
        blocks.
        """
        group = (offset - self._start.offset) * self._group // records
        groups = (block + block // 4) // group or int(group <= GROUP_BLOCKS * block)
        room = groups * group + group // 32 - held  # a little more: lengths differ
        # What is held may be longer than records were so far.
        return room if groups and room >= block // 4 else block
