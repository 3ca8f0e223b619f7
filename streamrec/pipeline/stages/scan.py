"""Scan: calls a function with a state and an element; it returns the next state and a result.

A position holds the state before a chunk's first element, and the number of elements of the chunk
that were seen. A resumed run calls the function for these again. So each chunk keeps one state, not
each element. As in tf.data, the state does not change if the function fails.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from streamrec.arguments import check_function, describe_value
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.codec import digest_values, pack, unpack
from streamrec.pipeline.elements.positions import (
    Derived,
    Position,
    Positions,
    shift,
    with_stage_state,
    with_state,
)
from streamrec.pipeline.engine.description import name_of
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.calling import Calling


@dataclass(frozen=True, slots=True)
class Scan(Stage):
    """Gives the second value of `scan_func(state, element)`; the first is the next state.

    See `Dataset.scan`.
    """

    scan_func: Callable[..., Any]
    initial_state: Any = field(compare=False)
    digest: str
    offload: ClassVar[Offload] = Offload.ALWAYS

    def __post_init__(self) -> None:
        check_function("scan_func", self.scan_func)

    @classmethod
    def of(cls, initial_state: Any, scan_func: Callable[..., Any]) -> Scan:
        """A scan that begins with this state; a TypeError if positions cannot hold it."""
        pack_state(initial_state)
        return cls(scan_func, initial_state, digest_values(initial_state))

    def __repr__(self) -> str:
        # Saved positions compare this text, so functions appear by their names.
        return f"Scan({name_of(self.scan_func)}, initial_state of digest {self.digest})"

    def cardinality(self, count: int) -> int:
        return count

    def start(self, key: str, state: Mapping[str, Any] | None) -> Step:
        packed = pack_state(self.initial_state) if state is None else state["state"]
        # A new copy for each run, since a function may change its state in place.
        [before] = unpack(memoryview(b64decode(packed)))
        return _Scanning(self.scan_func, key, before, state["seen"] if state else 0)


class _Scanning(Calling):
    def __init__(self, function: Callable[..., Any], key: str, state: Any, repeated: int) -> None:
        super().__init__(self._scan)
        self._scan_func = function
        self._key = key
        self._state = state
        self._repeated = repeated  # elements whose results were given before the run was resumed

    def feed(self, chunk: Chunk) -> list[Chunk]:
        before = pack_state(self._state)
        out = []
        for first, results, error in self._call([(element,) for element in chunk.elements]):
            repeated = min(self._repeated, len(results))
            self._repeated -= repeated
            if repeated < len(results):
                positions = self._positions(shift(chunk.positions, first), before)
                out.append(Chunk.weigh(results[repeated:], shift(positions, repeated)))
            if error is not None:
                before = pack_state(self._state)
                out.append(Chunk.failure(error, self._same_state(chunk), first + len(results) + 1))
        return out

    def fail(self, chunk: Chunk) -> list[Chunk]:
        return [chunk.at(self._same_state(chunk))]

    def _positions(self, inner: Positions, state: str) -> Positions:
        """Positions of results: all from the first element on, before which the scan had `state`.

        A resumed run calls the function again for the elements that were `seen`.
        """

        def place(inner: Positions, seen: int) -> Position:
            return with_state(inner.at(0), self._key, {"state": state, "seen": seen})

        return Derived(inner, place)

    def _same_state(self, chunk: Chunk) -> Positions:
        """Positions before and after a failure, where the scan has the same state."""
        state = {"state": pack_state(self._state), "seen": 0}
        return with_stage_state(chunk.positions, self._key, lambda _: state)

    def _scan(self, element: Any) -> Any:
        pair = self._scan_func(self._state, element)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                f"{name_of(self._scan_func)} returned {describe_value(pair)}: the function passed "
                "to scan must return a pair, the next state and an element"
            )
        self._state, result = pair
        return result


def pack_state(state: Any) -> str:
    """A state of `scan` as positions hold it: base64 of `codec.pack`.

    A TypeError names a state that cannot be packed.
    """
    try:
        return b64encode(pack([state])).decode()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the state of scan is {describe_value(state)}, which a position cannot hold: use "
            "arrays, numbers, strings, and dicts, tuples and lists of them"
        ) from error
