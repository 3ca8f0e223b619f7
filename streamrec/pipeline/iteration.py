"""Iteration: what the iterators share: the elements under way, where they stand, and what is told of the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from operator import length_hint
from typing import Any

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.budget import CONSUMER, UNCOUNTED
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.engine.options import Options
from streamrec.pipeline.engine.states import position_of, state_at, state_of
from streamrec.pipeline.telemetry.meters import Telemetry
from streamrec.pipeline.telemetry.stats import Stats
from streamrec.pipeline.telemetry.trace import Trace
from streamrec.tfrecord import Frames

__all__ = ["Iteration", "Run"]


class Run:
    """A run for its consumer: the description, the elements under way, and the position among them.

    Attributes:
        elements: Those under way.
    """

    def __init__(
        self,
        chain: Chain,
        options: Options,
        state: Mapping[str, Any] | None,
        trace: str | os.PathLike[str] | None = None,
        progress: bool = False,
        seed: int = 0,
    ) -> None:
        self.chain = chain
        self.position = position_of(chain, state) if state is not None else {"seed": seed}
        self.memory_budget = options.budget
        self.queue_bytes = max(1, CONSUMER.of(self.memory_budget))
        rest = self.memory_budget - self.queue_bytes - UNCOUNTED.of(self.memory_budget)
        self.options = replace(options, memory_budget=max(1, rest))
        self.elements: Iterator[Any] = iter(())
        self._under_way: tuple[Chunk, Iterator[Any]] | None = None  # one value, for threads that ask for the state
        self.telemetry = Telemetry(chain, self.queue_bytes, None if trace is None else Trace(trace), progress)

    def enter(self, chunk: Chunk) -> None:
        """The next chunk's elements are handed out from now on."""
        rest = iter(unpacked(chunk))
        self._under_way = chunk, rest
        self.elements = rest
        self.telemetry.takes(chunk, self.elements)

    def leave(self) -> None:
        """The consumer takes nothing more."""
        self.elements = iter(())
        self.telemetry.ends()

    def bookmark(self) -> Callable[[], dict[str, Any]]:
        """What gives the position before the next element as JSON, also when that one has been taken."""
        position, under_way = self.position, self._under_way
        if under_way is None:
            return partial(state_of, self.chain, self.options.epoch, position)
        chunk, rest = under_way
        taken = len(chunk.elements) - length_hint(rest)
        return partial(state_at, self.chain, self.options.epoch, chunk.positions, taken, position["seed"])


class Iteration:
    """What an iterator tells of its run, at any time, whichever way it hands out the elements."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> dict[str, Any]:
        """Where the next element comes from, as JSON: `dataset.iterate(state)` or `aiterate(state)` goes on there."""
        return self._run.bookmark()()

    def bookmark(self) -> Callable[[], dict[str, Any]]:
        """A `state_dict()` for later: the call gives the state as of now, and until then costs next to nothing."""
        return self._run.bookmark()

    @property
    def memory_budget(self) -> int:
        """Bytes that this run may hold: what `with_options` said, or a share of the machine's memory."""
        return self._run.memory_budget

    @property
    def waited(self) -> float:
        """Seconds that this iterator's consumer has waited for data so far."""
        return self._run.telemetry.waited

    def stats(self) -> Stats:
        """How the run stands: its stages, its waits, its bottleneck, its stores; at any time, from any thread."""
        return self._run.telemetry.stats()


def unpacked(chunk: Chunk) -> Iterable[Any]:
    """A chunk's elements as a sequence whose iterator knows how many are left."""
    return list(chunk.elements) if isinstance(chunk.elements, Frames) else chunk.elements
