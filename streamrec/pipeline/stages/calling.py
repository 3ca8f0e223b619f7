"""Calls of the user's functions for each element.

As in tf.data, a tuple is passed as several arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from itertools import starmap
from typing import Any, ClassVar, NamedTuple

from streamrec.arguments import check_function
from streamrec.pipeline.elements.chunk import Chunk, Elements
from streamrec.pipeline.elements.columns import pieces
from streamrec.pipeline.elements.positions import shift
from streamrec.pipeline.engine.stage import (
    UNKNOWN_CARDINALITY,
    Halt,
    Offload,
    Stage,
    Step,
    halting,
    keeps_rows,
)


def call_function(function: Callable[..., Any], element: Any) -> Any:
    """Calls the user's function for an element."""
    return function(*element) if type(element) is tuple else function(element)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, or the `__call__` of an object, is declared `async`."""
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


@dataclass(frozen=True, slots=True)
class Map(Stage):
    """Calls a function for each element."""

    function: Callable[..., Any]
    offload: ClassVar[Offload] = Offload.ALWAYS
    one_to_one: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_function("function", self.function)

    def cardinalities(self, count: int, rows: int) -> tuple[int, int]:
        return count, rows if keeps_rows(self.function) else UNKNOWN_CARDINALITY

    def start(self, key: str, state: int | None) -> Step:
        return Calling(self.function)


class Results(NamedTuple):
    """The function's results for consecutive elements, and the error of the element after them."""

    first: int
    results: list[Any]
    error: Exception | None

    @property
    def last(self) -> int:
        """The index after the last result: that of the element that failed."""
        return self.first + len(self.results)


class Calling(Step):
    """Calls a function for each element; an element at which it fails becomes a failure.

    `convert` is applied to each result, and `at_end` called when the input has ended.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        convert: Callable[[Any], Any] | None = None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._at_end = at_end
        self._function = function
        self._convert = convert

    def feed(self, chunk: Chunk) -> list[Chunk]:
        out = []
        for results in self._call(chunk.elements):
            out += self._give(chunk, results)
            if results.error is not None:
                out += self.fail(Chunk.failure(results.error, chunk.positions, results.last + 1))
        return out

    def flush(self) -> list[Chunk]:
        self._at_end()
        return []

    def _give(self, chunk: Chunk, results: Results) -> list[Chunk]:
        """The step's output for these results of a chunk's elements."""
        if results.results and isawaitable(results.results[0]):
            for result in filter(iscoroutine, results.results):
                result.close()
            raise TypeError(
                f"the function passed to map returned {type(results.results[0]).__name__} objects, "
                "which must be awaited: declare it `async def`, or pass num_parallel_calls"
            )
        positions = shift(chunk.positions, results.first)
        return [Chunk.weigh(results.results, positions)] if results.results else []

    def _call(self, elements: Elements) -> Iterator[Results]:
        """Calls the function for each element.

        Gives the results up to each error, and those after the last one.
        """
        self.failures = []
        halt = halting.get() or Halt()
        first = 0
        end = 0
        results: list[Any] = []
        for piece in pieces(elements):
            end += len(piece)
            calls = call_each(self._function, piece, halt.ends(piece))
            calls = calls if self._convert is None else map(self._convert, calls)
            while True:
                error = extend(results, calls)
                if halt.asked:
                    return
                if error is None and first + len(results) == end:
                    break
                # A StopIteration of the function ends `extend` as if the piece were over.
                error = error or RuntimeError("the function raised StopIteration")
                self.failures.append((error, first + len(results)))
                yield Results(first, results, error)
                first += len(results) + 1
                results = []
        yield Results(first, results, None)


def call_each(
    function: Callable[..., Any], piece: list[Any], elements: Iterator[Any]
) -> Iterator[Any]:
    """Calls the function for the elements of a piece, without a line of Python for each."""
    kinds = set(map(type, piece))
    if tuple not in kinds:
        return map(function, elements)
    return (
        starmap(function, elements)
        if len(kinds) == 1
        else map(partial(call_function, function), elements)
    )


def extend(results: list[Any], calls: Iterator[Any]) -> Exception | None:
    """Adds results up to the first error, which is returned; `calls` can be continued after it."""
    try:
        results.extend(calls)  # results before an error stay in the list
    except Exception as error:
        return error
    return None
