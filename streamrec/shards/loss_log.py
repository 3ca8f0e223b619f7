"""LossLog: what was lost to damage in one shard: kept, counted, logged and given to `on_loss`."""

from __future__ import annotations

import logging
from typing import Final

from streamrec.display import display_name
from streamrec.shards.options import ReadOptions
from streamrec.storage import Tally
from streamrec.tfrecord import Loss

LOG = logging.getLogger("streamrec")

KEPT: Final = 1000
"""Losses of a shard that are kept.

A shard with damage everywhere must not fill the memory.
"""

LOGGED: Final = 10
"""Losses that are logged one by one; then one line says that there are more."""


class LossLog:
    """The losses of one shard.

    Attributes:
        losses: The losses so far, in order; the first thousand of them.
        count: The number of losses.
    """

    def __init__(self, options: ReadOptions, tally: Tally) -> None:
        self.losses: list[Loss] = []
        self.count = 0
        self._options = options
        self._tally = tally

    def add(self, losses: list[Loss]) -> None:
        """Adds losses, in order."""
        for loss in losses:
            self.count += 1
            self._tally.count("losses")
            self._tally.count("lost_bytes", loss.nbytes or 0)
            if self.count <= KEPT:
                self.losses.append(loss)
            self._log(loss)
            if self._options.on_loss is not None:
                self._options.on_loss(loss)

    def covers_rest(self, *, is_compressed: bool) -> bool:
        """Whether damage ends the shard with the loss of its rest, instead of an error.

        That is so for "skip_shard", and with "resync" for a broken compressed stream, after which
        no record can be found.
        """
        limit = self._options.max_skipped
        if limit is not None and self.count >= limit:
            return False
        on_error = self._options.on_error
        return on_error == "skip_shard" or (on_error == "resync" and is_compressed)

    def _log(self, loss: Loss) -> None:
        """Logs a loss, if there were few so far."""
        if self.count <= LOGGED:
            LOG.warning("%s", loss, extra={"loss": loss})
        elif self.count == LOGGED + 1:
            where = display_name(loss.path or "")
            text = "%s: more than %d losses; further ones are counted and not logged"
            LOG.warning(text, where, LOGGED, extra={"loss": loss})
