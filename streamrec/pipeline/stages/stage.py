"""Stages: frozen descriptions, and the steps that carry them out, without I/O.

Rules:
- A stage is frozen, picklable and comparable. `start(state)` makes its running step; state is given there and
  nowhere else, so starting and resuming are one code path.
- A step has `feed(chunk)` (the chunks that it completes), `flush()` (what is left when the input ends) and
  `done` (it wants no more input). It never awaits, sleeps, or sees where its chunks come from.
- Whatever an emitted chunk's positions say is enough to go on from there: a step whose output straddles
  input chunks points back to the input's places, and needs no state of its own.
- The user's functions get what tf.data's would get: a tuple is passed as several arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from inspect import isawaitable, iscoroutine
from typing import Any, ClassVar, Protocol

from streamrec.pipeline.elements.chunk import Chunk

__all__ = ["Calling", "Calls", "Halt", "Map", "Mapped", "Offload", "Stage", "Step", "called", "halting"]


class Offload(IntEnum):
    """Whether a stage's work is done in a worker thread, beside the event loop.

    LONG: where it takes longer than to go to a thread and back. ALWAYS: it calls code of the user's, which may wait.
    """

    NEVER = 0
    LONG = 1
    ALWAYS = 2


class Step(Protocol):
    """A stage at work. One that keeps an error back may say in `failed` at which element of the last chunk it was."""

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

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        """Asks for it, from any thread."""
        self.asked = True


halting: ContextVar[Halt | None] = ContextVar("streamrec_halting", default=None)


def called(function: Callable[..., Any], element: Any) -> Any:
    """What a function of the user's makes of an element."""
    return function(*element) if type(element) is tuple else function(element)


class Calls:
    """Calls of a function of the user's, whose error waits for what was made before it.

    Attributes:
        failed: At which of the elements it failed; None where it did not.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.failed: int | None = None
        self._function = function
        self._error: Exception | None = None

    def results(self, elements: Iterable[Any], kind: Callable[[Any], Any] | None = None) -> Iterator[Any]:
        """What the function makes of each element, made a `kind`, up to the one at which it fails."""
        index, halt = 0, halting.get() or Halt()
        try:
            for index, element in enumerate(elements):  # noqa: B007 - the error handler reads it
                if halt.asked:
                    return
                result = called(self._function, element)
                yield result if kind is None else kind(result)
        except Exception as error:
            self._error, self.failed = error, index

    def check(self) -> None:
        """Raises the error that ended `results`, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error


@dataclass(frozen=True, slots=True)
class Map:
    """Calls a function for each element; a tuple's parts are its arguments."""

    function: Callable[..., Any]
    offload: ClassVar[Offload] = Offload.ALWAYS

    def start(self, key: str, state: int | None) -> Step:
        return Mapped(self.function)


class Calling:
    """What steps that call a function of the user's have in common: its error comes behind what came before it."""

    done = False

    def __init__(self, function: Callable[..., Any]) -> None:
        self._calls = Calls(function)

    @property
    def failed(self) -> int | None:
        """At which element of the last chunk the function failed."""
        return self._calls.failed

    def flush(self) -> list[Chunk]:
        """Raises the error that the function failed with, once."""
        self._calls.check()
        return []


class Mapped(Calling):
    """A step that calls a function for each element."""

    def feed(self, chunk: Chunk) -> list[Chunk]:
        """What the function makes of the chunk's elements, as far as it does not fail."""
        self._calls.check()
        results = list(self._calls.results(chunk.elements))
        refuse_awaitables(results)
        return [Chunk.weighed(results, chunk.positions)] if results else self.flush()


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
