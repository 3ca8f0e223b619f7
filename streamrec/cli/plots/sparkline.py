"""Histograms as characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["sparkline"]

STEPS: Final = "▁▂▃▄▅▆▇█"


def sparkline(counts: Sequence[int]) -> str:
    """A character for each count; a space for none, the highest bar for the most.

    Examples:
        >>> sparkline([0, 1, 4, 8])
        ' ▁▄█'
    """
    most = max(counts, default=0)
    return "".join(" " if not count else STEPS[-(-count * len(STEPS) // most) - 1] for count in counts)
