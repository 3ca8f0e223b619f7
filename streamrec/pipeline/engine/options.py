"""Options of a whole pipeline: those of tf.data's `Options` that apply here, and our own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from streamrec.arguments import flag, integer
from streamrec.pipeline.engine.budget import DEFAULT, default_budget
from streamrec.pipeline.engine.ranks import Rank

__all__ = ["AUTOTUNE", "Options", "check_calls"]

AUTOTUNE: Final = -1
"""As an argument: choose for me, and go on choosing while the pipeline runs. tf.data.AUTOTUNE is the same number."""


def check_calls(calls: int | None) -> None:
    """Refuses a `num_parallel_calls` that is not a number of calls, AUTOTUNE, or None."""
    if integer("num_parallel_calls", calls, none=True) not in (None, AUTOTUNE) and calls < 1:  # type: ignore[operator]
        raise ValueError(f"num_parallel_calls={calls} must be at least 1, AUTOTUNE, or None")


@dataclass(frozen=True, slots=True)
class Options:
    """What a whole pipeline is told.

    Args:
        deterministic: Whether stages that were not told otherwise keep the order; None for True.
        memory_budget: Bytes that one run may hold; None for a share of the machine's memory.
        epoch: Which epoch a run begins with.
        rank: Which rank runs it; None to look for it in the environment.
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
        """The bytes that a run may hold: what was said, or the default of this machine."""
        return default_budget() if self.memory_budget is None else self.memory_budget

    @property
    def follows_memory(self) -> bool:
        """Whether the budget is that of a machine with little memory: no order may depend on it."""
        return self.memory_budget is None and self.budget != DEFAULT.most

    @classmethod
    def of(cls, several: Iterable[Options]) -> Options:
        """Those of a pipeline made of several: the largest budget; in order unless one said not; the first's epoch."""
        parts = list(several)
        said = [part.deterministic for part in parts if part.deterministic is not None]
        budgets = [part.memory_budget for part in parts if part.memory_budget is not None]
        ranks = [part.rank for part in parts if part.rank is not None]
        rank = ranks[0] if ranks else None
        return cls(all(said) if said else None, max(budgets, default=None), parts[0].epoch, rank)

    def with_values(
        self, deterministic: bool | None, memory_budget: int | None, epoch: int | None, rank: Rank | None
    ) -> Options:
        """These, save for what is given."""
        deterministic = None if deterministic is None else flag("deterministic", deterministic)
        memory_budget = integer("memory_budget", memory_budget, none=True)
        epoch = integer("epoch", epoch, 0, none=True)
        return replace(
            self,
            deterministic=self.deterministic if deterministic is None else deterministic,
            memory_budget=self.memory_budget if memory_budget is None else memory_budget,
            epoch=self.epoch if epoch is None else epoch,
            rank=self.rank if rank is None else rank,
        )
