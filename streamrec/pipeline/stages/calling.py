"""Calls of functions for each element: `Map`, and what steps that call one have in common.

A function gets what tf.data's would get: a tuple is passed as several arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from itertools import starmap
from typing import Any, ClassVar, NamedTuple

from streamrec.pipeline.elements.chunk import Chunk, Elements
from streamrec.pipeline.elements.columns import pieces
from streamrec.pipeline.elements.positions import shift
from streamrec.pipeline.engine.stage import Halt, Offload, Stage, Step, halting

__all__ = ["Calling", "Map", "Results", "call_function", "is_async"]


def call_function(function: Callable[..., Any], element: Any) -> Any:
    """What a function of the user's makes of an element."""
    return function(*element) if type(element) is tuple else function(element)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, or an object that is called, is declared `async`."""
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


@dataclass(frozen=True, slots=True)
class Map(Stage):
    """Calls a function for each element; a tuple's parts are its arguments."""

    function: Callable[..., Any]
    offload: ClassVar[Offload] = Offload.ALWAYS
    one_to_one: ClassVar[bool] = True

    def start(self, key: str, state: int | None) -> Step:
        return Calling(self.function)


class Results(NamedTuple):
    """What a function made of some elements that follow each other, and the error of the one after these."""

    first: int
    results: list[Any]
    error: Exception | None

    @property
    def last(self) -> int:
        """The index after those that gave results: that of the element that failed."""
        return self.first + len(self.results)


class Calling(Step):
    """Calls a function for each element; an element at which it fails becomes a failure.

    Args:
        function: What is called.
        kind: Makes of each result what is wanted; None for the result itself.
        at_end: Called when the input has ended.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        kind: Callable[[Any], Any] | None = None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._at_end = at_end
        self._function = function
        self._kind = kind

    def feed(self, chunk: Chunk) -> list[Chunk]:
        """What the function makes of the chunk's elements."""
        out = []
        for results in self._results(chunk.elements):
            out += self._make(chunk, results)
            if results.error is not None:
                out += self.fail(Chunk.failure(results.error, chunk.positions, results.last + 1))
        return out

    def flush(self) -> list[Chunk]:
        self._at_end()
        return []

    def _make(self, chunk: Chunk, results: Results) -> list[Chunk]:
        """What comes out for some of a chunk's elements."""
        refuse_awaitables(results.results)
        made, positions = results.results, shift(chunk.positions, results.first)
        return [Chunk.weigh(made, positions)] if made else []

    def _results(self, elements: Elements) -> Iterator[Results]:
        """What the function makes of each element, in runs that errors end."""
        self.failures = []
        halt, first, end = halting.get() or Halt(), 0, 0
        results: list[Any] = []
        for piece in pieces(elements):
            end += len(piece)
            made = results_of(self._function, piece, halt.ends(piece))
            made = made if self._kind is None else map(self._kind, made)
            while True:
                error = extend(results, made)
                if halt.asked:
                    return
                if error is None and first + len(results) == end:
                    break
                error = error or RuntimeError("the function raised StopIteration")
                self.failures.append((error, first + len(results)))
                yield Results(first, results, error)
                first, results = first + len(results) + 1, []
        yield Results(first, results, None)


def results_of(function: Callable[..., Any], piece: list[Any], elements: Iterator[Any]) -> Iterator[Any]:
    """What a function makes of the elements of a piece, without a line of Python for each."""
    kinds = set(map(type, piece))
    if tuple not in kinds:
        return map(function, elements)
    return starmap(function, elements) if len(kinds) == 1 else map(partial(call_function, function), elements)


def extend(results: list[Any], made: Iterator[Any]) -> Exception | None:
    """Adds to the results what comes; gives the error that ended this. `made` goes on after it."""
    try:
        results.extend(made)  # what came before an error stays in the list
    except Exception as error:
        return error
    return None


def refuse_awaitables(results: list[Any]) -> None:
    """Refuses what would not be awaited.

    Raises:
        TypeError: The function gives awaitables; the message says how it is called.
    """
    if results and isawaitable(results[0]):
        for result in results:
            if iscoroutine(result):
                result.close()
        raise TypeError(
            f"map's function gave {type(results[0]).__name__} objects, which must be awaited: make it an "
            "`async def`, or pass num_parallel_calls"
        )
