"""Scan: a function that gets a state with each element, and returns the next state with its result.

A position holds the state before a chunk's first element, and how many elements of the chunk had been seen: a run that
goes on there calls the function for these once more. So one state is kept for each chunk, and not one for each element.
An element at which the function fails leaves the state as it was, as in tf.data; what follows counts from there.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from streamrec.arguments import describe_value
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.codec import digest_of, pack, unpack
from streamrec.pipeline.elements.positions import (
    Derived,
    Position,
    Positions,
    Precursor,
    StageState,
    shift,
    with_state,
)
from streamrec.pipeline.engine.description import name_of
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.calling import Calling

__all__ = ["Scan"]


@dataclass(frozen=True, slots=True)
class Scan(Stage):
    """The second value of `scan_func(state, element)`; the first is the next state. See `Dataset.scan`."""

    scan_func: Callable[..., Any]
    initial_state: Any = field(compare=False)
    digest: str
    offload: ClassVar[Offload] = Offload.ALWAYS

    @classmethod
    def of(cls, initial_state: Any, scan_func: Callable[..., Any]) -> Scan:
        """A scan that begins with this state.

        Raises:
            TypeError: The state cannot be kept in a position.
        """
        pack_state(initial_state)
        return cls(scan_func, initial_state, digest_of(initial_state))

    def __repr__(self) -> str:
        """As in positions: functions differ from run to run but for their names."""
        return f"Scan({name_of(self.scan_func)}, initial_state of digest {self.digest})"

    def cardinality(self, count: int) -> int:
        return count

    def start(self, key: str, state: Mapping[str, Any] | None) -> Step:
        before = unpack_state(pack_state(self.initial_state) if state is None else state["state"])
        return _Scanning(self.scan_func, key, before, state["seen"] if state else 0)


class _Scanning(Calling):
    def __init__(self, function: Callable[..., Any], key: str, state: Any, again: int) -> None:
        super().__init__(self._scan)
        self._scan_func = function
        self._key = key
        self._state = state
        self._again = again  # elements whose results had been given before the run was resumed

    def feed(self, chunk: Chunk) -> list[Chunk]:
        before, out = pack_state(self._state), []
        for first, results, error in self._results([(element,) for element in chunk.elements]):
            used = min(self._again, len(results))
            self._again -= used
            if used < len(results):
                positions = ScanPositions(chunk.positions, first, self._key, before)
                out.append(Chunk.weigh(results[used:], shift(positions, used)))
            if error is not None:
                before = pack_state(self._state)
                out.append(Chunk.failure(error, self._same_state(chunk), first + len(results) + 1))
        return out

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """An element that failed before the scan leaves its state as it is."""
        return [replace(chunk, positions=self._same_state(chunk))]

    def _same_state(self, chunk: Chunk) -> Positions:
        """Positions before and after an element that failed: the scan has the same state at both."""
        state = {"state": pack_state(self._state), "seen": 0}
        return StageState(chunk.positions, self._key, lambda _: state)

    def _scan(self, element: Any) -> Any:
        given = self._scan_func(self._state, element)
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise TypeError(
                f"{name_of(self._scan_func)} gave {describe_value(given)}: scan wants a function that gives a pair, "
                "the next state and an element"
            )
        self._state, result = given
        return result


@dataclass(frozen=True, slots=True)
class ScanPositions(Derived):
    """Positions of what was made of a chunk's elements from `first` on: the place there, and how many were seen."""

    first: int
    stage: str
    state: str

    def at(self, index: int) -> Position:
        return with_state(self.inner.at(self.first), self.stage, {"state": self.state, "seen": index})

    def precursors(self, index: int, row: int) -> Sequence[Precursor]:
        return (Precursor(self.inner, self.first + index, row),)


def pack_state(state: Any) -> str:
    """A state as text."""
    try:
        return b64encode(pack([state])).decode()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"scan's state is {describe_value(state)}, which cannot be kept in a position: use arrays, numbers, "
            "strings, and dicts, tuples and lists of them"
        ) from error


def unpack_state(text: str) -> Any:
    """The state again: a copy, so that a function that changes it in place changes no other."""
    return unpack(memoryview(b64decode(text)))[0]
