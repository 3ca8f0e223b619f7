"""Stages: frozen descriptions, and the steps that carry them out, without I/O.

Rules:
- A stage is frozen, picklable and comparable. `start(state)` makes its running step; state is given there and
  nowhere else, so starting and resuming are one code path.
- A step has `feed(chunk)` (the chunks that it completes), `flush()` (what is left when the input ends) and
  `done` (it wants no more input). It never awaits, sleeps, or sees where its chunks come from.
- Whatever an emitted chunk's positions say is enough to go on from there: a step whose output straddles
  input chunks points back to the input's places, and needs no state of its own.
- An element at which a step fails becomes a failure (`Chunk.error`) among what the step gives, and the step goes on
  behind it. A step that gets a failure gives what it holds, then the failure, with its own state in the positions
  (`fail`). A step that has no `fail`, and one that raises, ends the run.
- The user's functions get what tf.data's would get: a tuple is passed as several arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from inspect import isawaitable, iscoroutine
from itertools import starmap
from typing import Any, ClassVar, NamedTuple, Protocol

from streamrec.pipeline.elements.chunk import Chunk, Elements, Shifted
from streamrec.pipeline.elements.columns import pieces

__all__ = [
    "Calling",
    "Calls",
    "Halt",
    "Map",
    "Mapped",
    "Offload",
    "Stage",
    "Step",
    "Stretch",
    "called",
    "failure_of",
    "halting",
]


class Offload(IntEnum):
    """Whether a stage's work is done in a worker thread, beside the event loop.

    LONG: where it takes longer than to go to a thread and back. ALWAYS: it calls code of the user's, which may wait.
    """

    NEVER = 0
    LONG = 1
    ALWAYS = 2


class Step(Protocol):
    """A stage at work.

    It may have `fail(chunk)`, which takes an element that failed before it, and `failures`: the errors of the last
    chunk and at which of its elements each was, None where that says nothing.
    """

    @property
    def done(self) -> bool:
        """Whether the step wants no more input: the pipeline ends with what it gave so far."""

    def feed(self, chunk: Chunk) -> list[Chunk]:
        """Takes a chunk; returns those that it completes, possibly none."""

    def flush(self) -> list[Chunk]:
        """Says that the input ended; returns what is left."""


class Stage(Protocol):
    """A description of what happens to elements."""

    offload: ClassVar[Offload]
    """Where `feed` runs."""

    def start(self, key: str, state: Any) -> Step:
        """Makes the running step.

        Args:
            key: The name under which positions hold this stage's state.
            state: That state, where the pipeline resumes: what its positions gave, a number or other JSON. Else None.
        """


class Halt:
    """Whether calls of the user's functions are to end: see `offload.py`.

    Attributes:
        asked: No further call is to be made: what was made is dropped.
    """

    __slots__ = ("_elements", "asked")

    def __init__(self) -> None:
        self.asked = False
        self._elements: list[Any] = []

    def ask(self) -> None:
        """Asks for it, from any thread."""
        self.asked = True
        self._elements.clear()

    def ends(self, elements: list[Any]) -> Iterator[Any]:
        """Elements that end when it is asked for, since an emptied list has no next one: no call asks before each."""
        self._elements = elements
        if self.asked:
            elements.clear()
        return iter(elements)


halting: ContextVar[Halt | None] = ContextVar("streamrec_halting", default=None)


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
class Map:
    """Calls a function for each element; a tuple's parts are its arguments."""

    function: Callable[..., Any]
    offload: ClassVar[Offload] = Offload.ALWAYS

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
                positions = Shifted(chunk.positions, stretch.first) if stretch.first else chunk.positions
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
