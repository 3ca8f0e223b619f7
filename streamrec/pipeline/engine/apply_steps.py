"""How chunks go through steps: plain calls, so that they can run in a thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.stage import Step

__all__ = ["collect", "drain", "push", "strict"]


def push(steps: Sequence[Step], chunk: Chunk) -> Iterator[Chunk]:
    """What comes out behind the last step when a chunk goes into the first; a step that is done takes no more."""
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
    """What comes out when the input has ended; an error of a step comes behind what is left in those after it."""
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
