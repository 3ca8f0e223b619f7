"""Encodes records as bodies, in short steps that keep the event loop responsive.

The loop serves all streams, so each step must be short, and the loop must poll its sockets between
two steps:
- A step takes at most `STEP_BYTES` and `STEP_RECORDS`; a thread encodes records above `LONG_BYTES`.
- Steps take turns: each round of the loop runs one, however many streams are waiting. The same
  holds for requests to the store, each of which takes a millisecond of Python.

Threads for all steps would be slower and no fairer: encoding is Python, so a thread and the loop
would take the GIL from each other, for 5 ms at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from examples.service.examples import to_json
from examples.service.failures import RequestError
from streamrec import Frames, encode_records

__all__ = ["NDJSON", "TFRECORD", "Turns", "bodies", "media_type"]

NDJSON: Final = "application/x-ndjson"
TFRECORD: Final = "application/x-tfrecord"

STEP_BYTES: Final = {NDJSON: 64 << 10, TFRECORD: 256 << 10}
STEP_RECORDS: Final = {NDJSON: 32, TFRECORD: 1 << 16}
"""What a step encodes: less than a millisecond's work."""

LONG_BYTES: Final = 1 << 20

SENT_BYTES: Final = 256 << 10
"""What is handed to the server at a time: it copies what the socket does not take."""


class Turns:
    """Lets one step run in each round of the event loop, in the order of requests:
    `async with turns: step()`.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        try:
            await asyncio.sleep(0)
        except BaseException:
            self._lock.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


def media_type(accept: str) -> str:
    """Returns the format that a client gets, by its `Accept`: NDJSON unless it asks for
    TFRecord.
    """
    return TFRECORD if TFRECORD in accept else NDJSON


async def bodies(blocks: AsyncGenerator[Frames], media: str, turns: Turns) -> AsyncGenerator[bytes]:
    """Encodes blocks of records as parts of a body.

    Raises:
        RequestError: The client wants NDJSON, and the records are not Examples.
    """
    step = encode_records if media == TFRECORD else json_lines
    async with aclosing(blocks):
        async for frames in blocks:
            encoded = [await taken(step, part, turns) for part in steps(frames, media)]
            body = memoryview(b"".join(encoded))
            for start in range(0, len(body), SENT_BYTES):
                yield bytes(body[start : start + SENT_BYTES])


async def taken(step: Callable[[Frames], bytes], frames: Frames, turns: Turns) -> bytes:
    """Encodes records: in a turn of the loop, or in a thread if they are long."""
    if frames.nbytes > LONG_BYTES:
        return await asyncio.to_thread(step, frames)
    async with turns:
        return step(frames)


def steps(frames: Frames, media: str) -> Iterator[Frames]:
    """Divides records, in their order, into steps of at least one record."""
    ends = np.cumsum(frames.lengths)
    first = 0
    while first < len(frames):
        begin = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, begin + STEP_BYTES[media], "right"))
        last = max(first + 1, min(fitting, first + STEP_RECORDS[media]))
        yield frames[first:last]
        first = last


def json_lines(frames: Frames) -> bytes:
    """Encodes each record as a line of JSON."""
    try:
        return "".join([to_json(record) + "\n" for record in frames]).encode()
    except DecodeError:
        raise RequestError(
            f"these records are not Examples: ask for them with 'Accept: {TFRECORD}'", 406
        ) from None
