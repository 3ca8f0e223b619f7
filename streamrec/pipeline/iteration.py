"""Iteration: what the iterators share: the elements under way, where they stand, and what is told of the run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from operator import length_hint
from typing import Any

from streamrec.errors import PositionMismatchError
from streamrec.pipeline.budget import CONSUMER, UNCOUNTED
from streamrec.pipeline.chunk import Chunk, Position
from streamrec.pipeline.description import Chain
from streamrec.pipeline.options import Options
from streamrec.pipeline.watching.stats import Stats
from streamrec.pipeline.watching.trace import Trace
from streamrec.pipeline.watching.watch import Watching
from streamrec.storage import Mappings
from streamrec.tfrecord import Frames

__all__ = ["Iteration", "Run"]

FORMAT = 1


class Run:
    """A run for its consumer: the description, the elements under way, and the position among them.

    Attributes:
        elements: Those under way.
        mappings: The files that it has mapped.
        looks: Whether elements under way may lie in these, so that `look()` is due before the next one.
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
        self.mappings = Mappings()
        self.looks = self._keeps_looking = False
        self.watching = Watching(chain, self.queue_bytes, None if trace is None else Trace(trace), progress)

    def enter(self, chunk: Chunk) -> None:
        """The next chunk's elements are handed out from now on."""
        elements = unpacked(chunk)
        self.looks = bool(self.mappings)
        self._keeps_looking = self.looks and elements is chunk.elements  # records of Frames are copies now
        rest = iter(elements)
        self._under_way = chunk, rest
        self.elements = rest
        self.watching.takes(chunk, self.elements)

    def look(self) -> None:
        """Whether the files that elements under way may lie in are as they were.

        Raises:
            StorageError: One was written to, or cannot be read; so at each further call.
        """
        self.mappings.check()
        self.looks = self._keeps_looking

    def leave(self) -> None:
        """The consumer takes nothing more."""
        self.elements = iter(())
        self.watching.ends()

    def state_dict(self) -> dict[str, Any]:
        """The position before the next element, as JSON."""
        position: Position = self.position
        if self._under_way is not None:
            chunk, rest = self._under_way
            position = chunk.positions.at(len(chunk.elements) - length_hint(rest))
        position = {**position, "seed": self.position["seed"]}
        lines = list(self.chain.lines())
        return {"format": FORMAT, "pipeline": lines, "epoch": self.options.epoch, "position": position}


class Iteration:
    """What an iterator tells of its run, at any time, whichever way it hands out the elements."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> dict[str, Any]:
        """Where the next element comes from, as JSON: `dataset.iterate(state)` or `aiterate(state)` goes on there."""
        return self._run.state_dict()

    @property
    def memory_budget(self) -> int:
        """Bytes that this run may hold: what `with_options` said, or a share of the machine's memory."""
        return self._run.memory_budget

    @property
    def waited(self) -> float:
        """Seconds that this iterator's consumer has waited for data so far."""
        return self._run.watching.waited

    def stats(self) -> Stats:
        """How the run stands: its stages, its waits, its bottleneck, its stores; at any time, from any thread."""
        return self._run.watching.stats()


def unpacked(chunk: Chunk) -> Iterable[Any]:
    """A chunk's elements as a sequence whose iterator knows how many are left."""
    return list(chunk.elements) if isinstance(chunk.elements, Frames) else chunk.elements


def position_of(chain: Chain, state: Mapping[str, Any]) -> Position:
    """The position in a saved state.

    Raises:
        PositionMismatchError: The state was saved by another pipeline; the message says what differs.
    """
    if state.get("format") != FORMAT:
        raise PositionMismatchError(
            f"this state has format {state.get('format')!r}, not {FORMAT}: it is of another version"
        )
    saved: Sequence[str] = state["pipeline"]
    ours = list(chain.lines())
    if saved != ours:
        was, now = next(pair for pair in zip_longest(saved, ours, fillvalue="nothing") if pair[0] != pair[1])
        raise PositionMismatchError(
            f"this state was saved by another pipeline: it had {was}, and now there is {now}; "
            "resume with the pipeline that saved it, or start anew without the state"
        )
    position: Position = state["position"]
    return position
