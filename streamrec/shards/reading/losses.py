"""What a shard lost to damage: collected, logged and told."""

from __future__ import annotations

import logging
from collections.abc import Callable

from streamrec.display import display_name
from streamrec.storage import Tally
from streamrec.tfrecord import Loss

__all__ = ["Losses"]

LOG = logging.getLogger("streamrec")
KEPT = 1000
"""So many losses of a shard are kept: a shard that is damaged all over must not fill the memory with them."""
LOGGED = 10
"""So many are logged one by one; then one line says that there are more."""


class Losses:
    """One shard's losses.

    Args:
        on_loss: Called with each.
        tally: Where they are counted.
    """

    def __init__(self, on_loss: Callable[[Loss], None] | None, tally: Tally) -> None:
        self.kept: list[Loss] = []
        self.count = 0
        self._on_loss = on_loss
        self._tally = tally

    def add(self, losses: list[Loss]) -> None:
        """Takes note of what was lost."""
        for loss in losses:
            self.count += 1
            self._tally.count_loss(loss.nbytes or 0)
            if self.count <= KEPT:
                self.kept.append(loss)
            if self.count <= LOGGED:
                LOG.warning("%s", loss)
            elif self.count == LOGGED + 1:
                where = display_name(loss.path or "")
                LOG.warning("%s: more was lost than %d times; the rest is counted and not logged", where, LOGGED)
            if self._on_loss is not None:
                self._on_loss(loss)
