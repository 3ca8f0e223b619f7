"""Global shuffle: all records of a data set in an order that depends on seed, epoch and index."""

from typing import Literal

__all__ = ["BLOCK_BYTES", "WINDOW_BYTES", "Quality"]

Quality = Literal["exact", "blocks"]
"""Whether single records or blocks of records are permuted."""

BLOCK_BYTES = 4 << 20
"""About how large a block is.

At 60 MB/s, waiting for the first byte is a third of the time to read it.
"""

WINDOW_BYTES = 128 << 20
"""How many bytes of blocks all ranks together mix at a time."""
