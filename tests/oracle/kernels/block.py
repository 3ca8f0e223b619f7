"""Memory for blocks of records; the twin of block.c."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["allocate"]


def allocate(size: int) -> Buffer:
    """Writable bytes of no particular content, for blocks of records.

    The native kernel uses the memory of blocks that are gone again, because fresh memory costs more than the
    copy that fills it (see block.c).

    Args:
        size: In bytes.

    Raises:
        ValueError: It is negative.
    """
    if size < 0:
        raise ValueError(f"size is {size}: wanted 0 or more")
    return bytearray(size)
