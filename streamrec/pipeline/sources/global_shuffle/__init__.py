"""A global shuffle: all records of a data set in an order of seed, epoch and index."""

from typing import Literal

__all__ = ["BLOCK_BYTES", "WINDOW_BYTES", "Quality"]

Quality = Literal["exact", "blocks"]
"""Whether each record is drawn by itself, or blocks of them."""

BLOCK_BYTES = 4 << 20
"""About how large a block is: of the time that it takes at 60 MB/s, a third is spent waiting for the first byte."""

WINDOW_BYTES = 128 << 20
"""How many bytes of blocks all ranks together mix at a time."""
