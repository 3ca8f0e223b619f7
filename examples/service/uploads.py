"""The requests that write: a body becomes a shard, completely or not at all.

The service checks records as they arrive, and sends them to the store in parts. The shard appears
when the body has ended without an error. An invalid body, a client that disconnects or a service
that is killed leaves nothing that a reader could see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

import streamrec
from examples.service.encoding import NDJSON, TFRECORD, Turns
from examples.service.examples import from_json
from examples.service.failures import RequestError

__all__ = ["post_index", "put_shard"]

MAX_BYTES: Final = 64 << 20
"""A longer record is refused: it would have to be held whole."""

LINES_BYTES: Final = 16 << 10
"""The bytes of lines that are encoded at a time."""


async def put_shard(request: Request) -> Response:
    """Stores a body as a shard; with `If-None-Match: *`, only if no shard has this name."""
    service = request.app.state.service
    url = service.settings.shard(request.path_params["name"])
    if "*" in url:
        raise RequestError("a shard's name has no *")
    decoder = decoder_of(request.headers.get("content-type", ""))
    overwrite = request.headers.get("if-none-match") != "*"
    try:
        async with streamrec.ShardWriter(
            url, overwrite=overwrite, **service.settings.storage
        ) as writer:
            async for records in decoded(request, decoder, service.turns):
                await writer.write_batch(records)
    except (streamrec.CorruptRecordError, streamrec.errors.TruncatedShardError) as error:
        raise RequestError(str(error)) from error
    except ClientDisconnect:
        return Response(status_code=400)  # the client does not read it
    [shard] = writer.shards
    service.metrics.uploaded.inc(shard.records)
    return JSONResponse({"shard": shard.path, "records": shard.records, "bytes": shard.bytes}, 201)


async def post_index(request: Request) -> Response:
    """Updates the index, so that the records of new shards have numbers."""
    source = await request.app.state.service.update_index()
    return JSONResponse({"records": len(source), "shards": len(source.index.shards)})


class Decoder(Protocol):
    """Decodes a body into records."""

    def feed(self, data: bytes) -> Iterator[streamrec.Frames]:
        """Returns the records that these bytes complete."""

    def close(self) -> Iterator[streamrec.Frames]:
        """Returns the last records."""


class TFRecords:
    """A TFRecord stream: every length and CRC32C is checked."""

    def __init__(self) -> None:
        self._framer = streamrec.Framer(path="the body", max_record_bytes=MAX_BYTES)

    def feed(self, data: bytes) -> Iterator[streamrec.Frames]:
        """As Decoder."""
        yield self._framer.feed(data)

    def close(self) -> Iterator[streamrec.Frames]:
        """As Decoder."""
        yield self._framer.close()


class Lines:
    """NDJSON: each line is an Example."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._line = 0

    def feed(self, data: bytes) -> Iterator[streamrec.Frames]:
        """As Decoder."""
        self._rest += data
        if b"\n" in data:
            *lines, self._rest = self._rest.split(b"\n")
            yield from self._encoded(lines)
        if len(self._rest) > MAX_BYTES:
            raise RequestError(
                f"the body, line {self._line + 1}: it is longer than {MAX_BYTES} bytes"
            )

    def close(self) -> Iterator[streamrec.Frames]:
        """As Decoder."""
        yield from self._encoded([self._rest])

    def _encoded(self, lines: list[bytearray]) -> Iterator[streamrec.Frames]:
        held: list[bytes] = []
        size = 0
        for line in lines:
            self._line += 1
            if line.strip():
                held.append(self._record(line))
                size += len(line)
            if size >= LINES_BYTES:
                yield streamrec.Frames.of(held)
                held, size = [], 0
        yield streamrec.Frames.of(held)

    def _record(self, line: bytearray) -> bytes:
        try:
            return from_json(bytes(line))
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the body, line {self._line}: {error}") from None


def decoder_of(content_type: str) -> Decoder:
    """Returns the decoder for the type of a body.

    Raises:
        RequestError: The type is neither of the two.
    """
    kinds: dict[str, Callable[[], Decoder]] = {TFRECORD: TFRecords, NDJSON: Lines}
    kind = content_type.partition(";")[0].strip()
    if kind not in kinds:
        raise RequestError(f"Content-Type {kind!r}: a shard is sent as {TFRECORD} or {NDJSON}", 415)
    return kinds[kind]()


async def decoded(
    request: Request, decoder: Decoder, turns: Turns
) -> AsyncIterator[streamrec.Frames]:
    """Decodes the records of a body as they arrive: one step for each `Frames`."""
    async for data in request.stream():
        found = decoder.feed(data) if data else decoder.close()
        while (records := await in_turn(found, turns)) is not None:
            yield records


async def in_turn(found: Iterator[streamrec.Frames], turns: Turns) -> streamrec.Frames | None:
    """Returns the next records, in a turn of the loop; None at the end."""
    async with turns:
        return next(found, None)
