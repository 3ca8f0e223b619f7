"""Options of a whole pipeline: those of tf.data's `Options` that apply here, and more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from streamrec.arguments import integer
from streamrec.pipeline.engine.budget import DEFAULT, default_budget
from streamrec.pipeline.engine.ranks import Rank

AUTOTUNE: Final = -1
"""As an argument: tune the value while the pipeline runs. The same number as tf.data.AUTOTUNE."""


def check_calls(calls: int | None) -> None:
    """Refuses a `num_parallel_calls` other than a positive number, AUTOTUNE, or None."""
    if integer("num_parallel_calls", calls, none=True) not in (None, AUTOTUNE) and calls < 1:  # type: ignore[operator]
        raise ValueError(f"num_parallel_calls={calls} must be at least 1, AUTOTUNE, or None")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a whole pipeline.

    Args:
        deterministic: Whether stages without their own `deterministic` keep the order; None for True.
        memory_budget: How many bytes one run may hold; None for a share of the machine's memory.
        epoch: The epoch at which a run begins.
        rank: The rank that runs it; None to look it up in the environment.
    """

    deterministic: bool | None = None
    memory_budget: int | None = None
    epoch: int = 0
    rank: Rank | None = None

    def __post_init__(self) -> None:
        if self.memory_budget is not None and self.memory_budget < 1:
            raise ValueError(f"memory_budget={self.memory_budget} must be at least 1 byte, or None for the default")

    @property
    def budget(self) -> int:
        """How many bytes a run may hold: `memory_budget`, or the default of this machine."""
        return default_budget() if self.memory_budget is None else self.memory_budget

    @property
    def follows_memory(self) -> bool:
        """Whether the default budget is smaller because of the machine's memory, so that no order may depend on it."""
        return self.memory_budget is None and self.budget != DEFAULT.most

    @classmethod
    def of(cls, several: Iterable[Options]) -> Options:
        """Joins the options of several: the largest budget, in order unless one has False, the first's epoch."""
        parts = list(several)
        orders = [part.deterministic for part in parts if part.deterministic is not None]
        budgets = [part.memory_budget for part in parts if part.memory_budget is not None]
        rank = next((part.rank for part in parts if part.rank is not None), None)
        return cls(all(orders) if orders else None, max(budgets, default=None), parts[0].epoch, rank)
