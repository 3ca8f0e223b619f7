"""Stages: frozen descriptions, and the steps that run them, without I/O.

Rules:
- A stage is frozen, picklable and comparable. `start(key, state)` makes its running step. The state
  is given only there, so starting and resuming are one code path.
- A step has `feed(chunk)` (returns the chunks that it completes), `flush()` (returns the rest when
  the input ends) and `done` (it needs no more input). It never awaits or sleeps, and does not know
  where chunks come from.
- A chunk's positions are enough to resume: a step whose output spans input chunks refers to the
  input's positions, and needs no state.
- An element at which a step fails becomes a failure (`Chunk.error`) in the output, and the step
  continues after it. A step that gets a failure gives what it holds, then the failure, with its own
  state in the positions (`fail`). A step that raises ends the run.
- As in tf.data, the user's functions get a tuple as several arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from enum import IntEnum
from typing import Any, ClassVar, Final

from streamrec.pipeline.elements.chunk import Chunk

INFINITE_CARDINALITY: Final = -1
"""The `cardinality()` of an endless Dataset; the same number as tf.data.INFINITE_CARDINALITY."""

UNKNOWN_CARDINALITY: Final = -2
"""The `cardinality()` of a Dataset if it depends on the data: tf.data.UNKNOWN_CARDINALITY."""


class Offload(IntEnum):
    """Whether a stage runs in a worker thread instead of the event loop.

    LONG: if it takes longer than a hop to a thread and back. ALWAYS: it calls the user's code,
    which may block.
    """

    NEVER = 0
    LONG = 1
    ALWAYS = 2


class Step:
    """A running stage; one that holds no elements needs only `feed`.

    Attributes:
        done: Whether the step needs no more input: the pipeline ends after its output so far.
        failures: The errors of the last chunk, each with the index of its element in the chunk, or
            None.
    """

    def __init__(self) -> None:
        self.done = False
        self.failures: list[tuple[Exception, int | None]] = []

    def take(self, chunk: Chunk | None) -> list[Chunk]:
        """Takes a chunk, an element that failed, or the end (None)."""
        if chunk is None:
            return self.flush()
        return self.feed(chunk) if chunk.error is None else self.fail(chunk)

    def feed(self, chunk: Chunk) -> list[Chunk]:
        """Takes a chunk; returns the chunks that it completes."""
        raise NotImplementedError

    def flush(self) -> list[Chunk]:
        """Returns the rest when the input has ended."""
        return []

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """Takes an element that failed in an earlier stage.

        Returns what was held, and the failure.
        """
        return [chunk]


class Stage:
    """A description of what happens to elements; subclasses are frozen dataclasses.

    Attributes:
        offload: Where `feed` runs.
        picks: Whether it gives some of its input's elements unchanged.
        one_to_one: Whether it makes each element from one element of its input.
        ends: Whether it ends even if its input never does.
    """

    __slots__ = ()
    offload: ClassVar[Offload] = Offload.NEVER
    picks: ClassVar[bool] = False
    one_to_one: ClassVar[bool] = False

    @property
    def ends(self) -> bool:
        return False

    @property
    def windows_of(self) -> int:
        """How many elements make one of its own without a copy, if one chunk has all of them."""
        return 1

    def cardinality(self, count: int) -> int:
        """The number of elements made of `count`, which may also be infinite or unknown."""
        return count if self.one_to_one else UNKNOWN_CARDINALITY

    def cardinalities(self, count: int, rows: int) -> tuple[int, int]:
        """The number of elements that it makes of `count`, and the rows of all of these.

        `rows` is the number of rows of all elements of the input, if they are batches.
        """
        return self.cardinality(count), UNKNOWN_CARDINALITY

    def element_spec(self, spec: Any) -> Any:
        """The spec of its elements for input with this spec; None if it is unknown."""
        return spec if self.picks else None

    def start(self, key: str, state: Any) -> Step:
        """Makes the running step.

        It begins at the start, or at the JSON state that positions have under `key`.
        """
        raise NotImplementedError


def keeps_rows(function: object) -> bool:
    """Whether a function says that it makes a batch of as many rows as it is given."""
    return getattr(function, "keeps_rows", False) is True


class Halt:
    """Asks a thread to stop calling the user's function: see `threads.py`.

    Results are dropped then.
    """

    __slots__ = ("_elements", "asked")

    def __init__(self) -> None:
        self.asked = False
        self._elements: list[Any] = []

    def ask(self) -> None:
        """Stops the calls, from any thread."""
        self.asked = True
        self._elements.clear()

    def ends(self, elements: list[Any]) -> Iterator[Any]:
        """An iterator over a list that ends when `ask` empties the list.

        So calls need not check `asked`.
        """
        self._elements = elements
        if self.asked:
            elements.clear()
        return iter(elements)


halting: ContextVar[Halt | None] = ContextVar("streamrec_halting", default=None)


def collect(outputs: Iterator[Chunk]) -> tuple[list[Chunk], Exception | None]:
    """All outputs, and the error that ended them."""
    chunks: list[Chunk] = []
    try:
        chunks.extend(outputs)
    except Exception as error:
        return chunks, error
    return chunks, None
