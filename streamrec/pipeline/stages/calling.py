"""Calls of the user's functions: `Map`, and what steps that call one have in common.

A function gets what tf.data's would get: a tuple is passed as several arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutine
from itertools import starmap
from typing import Any, ClassVar, NamedTuple

from streamrec.pipeline.elements.chunk import Chunk, Elements
from streamrec.pipeline.elements.columns import pieces
from streamrec.pipeline.elements.positions import shifted
from streamrec.pipeline.engine.stage import Halt, Offload, Stage, Step, halting

__all__ = ["Calling", "Calls", "Map", "Mapped", "Stretch", "called", "failure_of"]


def called(function: Callable[..., Any], element: Any) -> Any:
    """What a function of the user's makes of an element."""
    return function(*element) if type(element) is tuple else function(element)


class Calls:
    """Calls of a function of the user's, up to the first at which it fails."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._error: Exception | None = None

    def results(self, elements: Iterable[Any], kind: Callable[[Any], Any] | None = None) -> Iterator[Any]:
        """What the function makes of each element, made a `kind`, up to the one at which it fails."""
        halt = halting.get() or Halt()
        try:
            for element in elements:
                if halt.asked:
                    return
                result = called(self._function, element)
                yield result if kind is None else kind(result)
        except Exception as error:
            self._error = error

    def taken_error(self) -> Exception | None:
        """The error that ended `results`, once."""
        error, self._error = self._error, None
        return error


@dataclass(frozen=True, slots=True)
class Map(Stage):
    """Calls a function for each element; a tuple's parts are its arguments."""

    function: Callable[..., Any]
    offload: ClassVar[Offload] = Offload.ALWAYS
    one_to_one: ClassVar[bool] = True

    def start(self, key: str, state: int | None) -> Step:
        return Mapped(self.function)


class Stretch(NamedTuple):
    """What a function made of some elements that follow each other, and the error of the one behind these."""

    first: int
    results: list[Any]
    error: Exception | None

    @property
    def last(self) -> int:
        """The index behind those that gave results: that of the element that failed."""
        return self.first + len(self.results)


class Calling:
    """What steps that call a function of the user's have in common: an element at which it fails becomes a failure.

    Attributes:
        failures: The errors of the last chunk, and at which of its elements each was.
    """

    done = False

    def __init__(self, function: Callable[..., Any]) -> None:
        self.failures: list[tuple[Exception, int]] = []
        self._function = function

    def flush(self) -> list[Chunk]:
        """Nothing is held."""
        return []

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """A failure goes on as it is."""
        return [chunk]

    def _stretches(self, elements: Elements, kind: Callable[[Any], Any] | None = None) -> Iterator[Stretch]:
        """What the function makes of each element, made a `kind`."""
        self.failures = []
        halt, first, end = halting.get() or Halt(), 0, 0
        results: list[Any] = []
        for piece in pieces(elements):
            end += len(piece)
            made = results_of(self._function, piece, halt.ends(piece))
            made = made if kind is None else map(kind, made)
            while True:
                error = extended(results, made)
                if halt.asked:
                    return
                if error is None and first + len(results) == end:
                    break
                error = error or RuntimeError("the function raised StopIteration")
                self.failures.append((error, first + len(results)))
                yield Stretch(first, results, error)
                first, results = first + len(results) + 1, []
        yield Stretch(first, results, None)


def results_of(function: Callable[..., Any], piece: list[Any], elements: Iterator[Any]) -> Iterator[Any]:
    """What a function makes of the elements of a piece, without a line of Python for each."""
    kinds = set(map(type, piece))
    if tuple not in kinds:
        return map(function, elements)
    return starmap(function, elements) if len(kinds) == 1 else map(partial(called, function), elements)


def extended(results: list[Any], made: Iterator[Any]) -> Exception | None:
    """Adds to the results what comes; gives the error that ended this. `made` goes on behind it."""
    try:
        results.extend(made)  # what came before an error stays in the list
    except Exception as error:
        return error
    return None


class Mapped(Calling):
    """A step that calls a function for each element."""

    def feed(self, chunk: Chunk) -> list[Chunk]:
        """What the function makes of the chunk's elements."""
        out = []
        for stretch in self._stretches(chunk.elements):
            refuse_awaitables(stretch.results)
            if stretch.results:
                positions = shifted(chunk.positions, stretch.first)
                out.append(Chunk.weighed(stretch.results, positions))
            out += failure_of(chunk, stretch)
        return out


def failure_of(chunk: Chunk, stretch: Stretch) -> list[Chunk]:
    """The failure behind a stretch of a chunk's elements; none where there is none."""
    return [] if stretch.error is None else [Chunk.failure(stretch.error, chunk.positions, stretch.last + 1)]


def refuse_awaitables(results: list[Any]) -> None:
    """Refuses what nobody would await.

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
