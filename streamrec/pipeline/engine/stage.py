"""Stages: frozen descriptions, and the steps that carry them out, without I/O.

Rules:
- A stage is frozen, picklable and comparable. `start(state)` makes its running step; state is given there and
  nowhere else, so starting and resuming are one code path.
- A step has `feed(chunk)` (the chunks that it completes), `flush()` (what is left when the input ends) and
  `done` (it wants no more input). It never awaits, sleeps, or sees where its chunks come from.
- Whatever an emitted chunk's positions say is enough to go on from there: a step whose output straddles
  input chunks points back to the input's places, and needs no state of its own.
- An element at which a step fails becomes a failure (`Chunk.error`) among what the step gives, and the step goes on
  after it. A step that gets a failure gives what it holds, then the failure, with its own state in the positions
  (`fail`). A step that raises ends the run.
- The user's functions get what tf.data's would get: a tuple is passed as several arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from enum import IntEnum
from typing import Any, ClassVar, Final

from streamrec.pipeline.elements.chunk import Chunk

__all__ = [
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "Halt",
    "Offload",
    "Stage",
    "Step",
    "collect",
    "drain",
    "halting",
    "push",
    "strict",
]

INFINITE_CARDINALITY: Final = -1
"""What `cardinality()` gives of a Dataset without an end. tf.data.INFINITE_CARDINALITY is the same number."""

UNKNOWN_CARDINALITY: Final = -2
"""What `cardinality()` gives where only the data says it. tf.data.UNKNOWN_CARDINALITY is the same number."""


class Offload(IntEnum):
    """Whether a stage's work is done in a worker thread, off the event loop.

    LONG: where it takes longer than to go to a thread and back. ALWAYS: it calls code of the user's, which may wait.
    """

    NEVER = 0
    LONG = 1
    ALWAYS = 2


class Step:
    """A stage at work; one that holds nothing needs `feed` alone.

    Attributes:
        done: Whether the step wants no more input: the pipeline ends with what it gave so far.
        failures: The errors of the last chunk, and at which of its elements each was; None where that says nothing.
    """

    def __init__(self) -> None:
        self.done = False
        self.failures: list[tuple[Exception, int | None]] = []

    def feed(self, chunk: Chunk) -> list[Chunk]:
        """Takes a chunk; returns those that it completes, possibly none."""
        raise NotImplementedError

    def flush(self) -> list[Chunk]:
        """The input has ended; returns what is left."""
        return []

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """Takes an element that failed before the step; returns what was held, and the failure."""
        return [chunk]


class Stage:
    """A description of what happens to elements; each is a frozen dataclass.

    Attributes:
        offload: Where `feed` runs.
        picks: Whether it gives some of the elements that it gets, as they are.
        one_to_one: Whether it makes each of its elements of one element alone.
        ends: Whether it gives a last element though its input never ends.
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
        """How many elements make one of its own without a copy, where a chunk holds all of them."""
        return 1

    def cardinality(self, count: int) -> int:
        """How many elements it makes of `count`, which may be infinite or unknown, too."""
        return count if self.one_to_one else UNKNOWN_CARDINALITY

    def cardinalities(self, count: int, rows: int) -> tuple[int, int]:
        """How many elements it makes of `count`, and how many rows these have, where those have `rows` in all."""
        return self.cardinality(count), UNKNOWN_CARDINALITY

    def element_spec(self, spec: Any) -> Any:
        """What its elements look like where those it gets look like `spec`; None where that is not known."""
        return spec if self.picks else None

    def start(self, key: str, state: Any) -> Step:
        """Makes the running step.

        Args:
            key: The name under which positions hold this stage's state.
            state: That state, where the pipeline resumes: what its positions gave, a number or other JSON. Else None.
        """
        raise NotImplementedError


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


def push(steps: Sequence[Step], chunk: Chunk) -> Iterator[Chunk]:
    """What comes out after the last step when a chunk goes into the first; a step that is done takes no more."""
    if not steps:
        yield chunk
        return
    if steps[0].done:
        return
    for out in steps[0].feed(chunk) if chunk.error is None else steps[0].fail(chunk):
        yield from push(steps[1:], out)


def strict(outputs: Iterator[Chunk]) -> Iterator[Chunk]:
    """The same up to an element that failed, whose error is raised."""
    for chunk in outputs:
        if chunk.error is not None:
            raise chunk.error
        yield chunk


def drain(steps: Sequence[Step]) -> Iterator[Chunk]:
    """What comes out when the input has ended; an error of a step comes after what is left in those after it."""
    failure: Exception | None = None
    for index, step in enumerate(steps):
        try:
            for out in step.flush():
                yield from push(steps[index + 1 :], out)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure


def collect(outputs: Iterator[Chunk]) -> tuple[list[Chunk], Exception | None]:
    """All outputs, and the error that ended them."""
    chunks: list[Chunk] = []
    try:
        chunks.extend(outputs)
    except Exception as error:
        return chunks, error
    return chunks, None
