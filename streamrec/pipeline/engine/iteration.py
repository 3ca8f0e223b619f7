"""Iteration: what the iterators share: the elements under way, where they stand, and what is told of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import zip_longest
from operator import length_hint
from typing import Any

from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.chunk import Chunk, Position, Positions
from streamrec.pipeline.engine.budget import CONSUMER, UNCOUNTED
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.engine.file_names import first_difference, sketch
from streamrec.pipeline.options import Options
from streamrec.pipeline.telemetry.stats import Stats
from streamrec.pipeline.telemetry.telemetry import Telemetry
from streamrec.pipeline.telemetry.trace import Trace
from streamrec.tfrecord import Frames

__all__ = ["Iteration", "Run", "shared_seed", "start_of_next_epoch"]

FORMAT = 2
"""The version of states: a later release reads it, or says why not."""


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


def state_of(chain: Chain, epoch: int, position: Position) -> dict[str, Any]:
    """A state, as JSON: which pipeline, which file names, where it stands; and a digest of all that."""
    state = {
        "format": FORMAT,
        "pipeline": list(chain.lines()),
        "names": [sketch(names) for names in all_names(chain)],
        "epoch": epoch,
        "position": position,
    }
    return {**state, "digest": digest_of(state)}


def state_at(chain: Chain, epoch: int, positions: Positions, index: int, seed: int) -> dict[str, Any]:
    """The state within a chunk, before its element of this index."""
    return state_of(chain, epoch, {**positions.at(index), "seed": seed})


def position_of(chain: Chain, state: Any) -> Position:
    """The position in a saved state.

    Raises:
        PositionMismatchError: It is no state, was changed or cut, is of another version, or was saved by another
            pipeline; the message says what differs.
    """
    check_state(state)
    saved: Sequence[str] = state["pipeline"]
    ours = list(chain.lines())
    if saved != ours:
        was, now = next(pair for pair in zip_longest(saved, ours, fillvalue="nothing") if pair[0] != pair[1])
        raise PositionMismatchError(
            f"this state was saved by another pipeline: it had {was}, and now there is {now}{where(state, chain)}; "
            "resume with the pipeline that saved it, or start anew without the state"
        )
    position: Position = state["position"]
    return position


def check_state(state: Any) -> None:
    """Refuses what is no state, or not as it was saved."""
    if not isinstance(state, Mapping) or "format" not in state:
        raise PositionMismatchError(
            f"a {type(state).__name__} without a 'format' is no state: pass what `state_dict()` gave, as it is"
        )
    if type(state["format"]) is not int:
        raise PositionMismatchError("the 'format' of this state is no number: pass what `state_dict()` gave, as it is")
    if state["format"] != FORMAT:
        advice = "update streamrec" if state["format"] > FORMAT else "start anew without it"
        raise PositionMismatchError(
            f"this state has format {state['format']!r}, and this release of streamrec reads format {FORMAT}: {advice}"
        )
    if state.get("digest") != digest_of({key: value for key, value in state.items() if key != "digest"}):
        raise PositionMismatchError(
            "this state is not as it was saved: something in it was changed or is missing; take another one, or start "
            "anew without it"
        )


def start_of_next_epoch(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state before the first element of the epoch that follows."""
    rest = {key: value for key, value in state.items() if key != "digest"}
    next_one = {**rest, "epoch": state["epoch"] + 1, "position": {"seed": state["position"]["seed"]}}
    return {**next_one, "digest": digest_of(next_one)}


def digest_of(state: Mapping[str, Any]) -> str:
    """A digest of a state, the same behind JSON and back.

    Raises:
        PositionMismatchError: It is nested too deep, or has keys that JSON has not.
    """
    try:
        text = json.dumps(state, sort_keys=True, separators=(",", ":"), default=repr)
    except (RecursionError, TypeError, ValueError) as error:
        raise PositionMismatchError(
            f"this state is no JSON ({type(error).__name__}): pass what `state_dict()` gave, as it is"
        ) from error
    return blake2b(text.encode(), digest_size=8).hexdigest()


def all_names(part: Any) -> Iterator[Sequence[str]]:
    """The file names of all sources that a description holds, in order."""
    names = getattr(part, "filenames", None)
    if names is not None:
        yield names
    parts = part.values() if isinstance(part, Mapping) else part if isinstance(part, tuple | list) else ()
    if is_dataclass(part) and names is None:
        parts = [getattr(part, each.name) for each in fields(part)]
    for each in parts:
        if isinstance(each, Mapping | tuple | list) or is_dataclass(each):
            yield from all_names(each)


def shared_seed(part: Any) -> int | None:
    """The seed that a description has for all ranks, so that their states are the same; None where it has none."""
    seed: int | None = getattr(part, "shared_seed", None)
    if seed is not None:
        return seed
    parts = part.values() if isinstance(part, Mapping) else part if isinstance(part, tuple | list) else ()
    if is_dataclass(part):
        parts = [getattr(part, each.name) for each in fields(part)]
    found = (shared_seed(each) for each in parts if isinstance(each, Mapping | tuple | list) or is_dataclass(each))
    return next((seed for seed in found if seed is not None), None)


def where(state: Mapping[str, Any], chain: Chain) -> str:
    """Which file name is the first that differs, for the end of a message; nothing where names are not the matter."""
    for saved, names in zip(state["names"], all_names(chain), strict=False):
        if saved != sketch(names):
            return f" ({first_difference(saved, names)})"
    return ""
