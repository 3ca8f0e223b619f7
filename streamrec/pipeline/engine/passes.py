"""Passes: what a source knows of the earlier times that the same run read it.

`repeat` and `concatenate` read sources again, or one after the other. A source whose steps are
taken in turn by the workers of a rank (a global shuffle) begins a pass with the worker whose turn
it is. If each pass began with worker 0, the workers would drift apart, one step more with each pass
whose number of steps is not a multiple of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Passes:
    """What the passes of a run have in common.

    Attributes:
        steps: How many steps all readers of this rank take together before the next pass; None if
            each pass begins with the first worker, as in earlier releases.
        common: The number of steps up to which all ranks are at the same step of the same pass
            after the same number of steps; None while no pass has more steps for some ranks.
        missed: How many passes have steps for other readers, and none for this one: its turn did
            not come, but may come in the next pass.
    """

    steps: int | None = 0
    common: int | None = None
    missed: int = 0

    def begin(self, steps: int, own: int) -> None:
        """Counts a pass with these numbers of steps: of all readers of this rank, and its own."""
        if self.steps is None:
            return
        self.steps += steps
        if steps > 0 and own == 0:
            self.missed += 1
