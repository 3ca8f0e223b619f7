"""The request that appends: it is answered when its events are durable.

One writer takes the events of all requests, so that small requests share shards. A task completes
the writer's shard a few times a second and then answers all requests whose events are in it: a
group commit. A client that has its answer never loses the events, however the service ends. The
events of a request without an answer are stored, or they are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

import streamrec
from examples.service.failures import RequestError
from examples.service.uploads import decoded, decoder_of

__all__ = ["EventLog", "post_events"]

GATHER_SECONDS: Final = 0.2
"""How long events wait for others that join their shard: more gives fewer, larger shards."""

NAMES: Final = "events/{time:%Y-%m-%d}/{time}-{uuid}-{shard:06d}.tfrecord"
"""No two processes of the service have the same names, and none replaces what another wrote."""


class EventLog:
    """Appends records to shards of its own: `async with EventLog.open(url, storage) as events`."""

    def __init__(self, writer: streamrec.ShardWriter) -> None:
        self._writer = writer
        self._waiting: list[asyncio.Future[None]] = []
        self._arrived = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, storage: dict[str, Any]) -> AsyncIterator[EventLog]:
        """Writes shards below `url` until the block ends; then all events are durable."""
        async with streamrec.ShardWriter(
            f"{url}/{NAMES}", max_shard_bytes=64 << 20, **storage
        ) as writer:
            events = cls(writer)
            committing = asyncio.create_task(events._commit())
            try:
                yield events
            finally:
                committing.cancel()

    async def append(self, records: streamrec.Frames) -> None:
        """Writes records; waits while the store is slower than the clients."""
        await self._writer.write_batch(records)

    async def durable(self) -> None:
        """Waits until all that was appended before is complete and visible in the store.

        Raises:
            StorageError: The store failed. The records may be there or not.
        """
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._arrived.set()
        await waiting

    async def _commit(self) -> None:
        while True:
            await self._arrived.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._arrived.clear()
            waiting = self._waiting
            self._waiting = []
            try:
                await self._writer.rotate()
            except streamrec.StreamrecError as error:
                answer(waiting, error)
            else:
                answer(waiting, None)


def answer(waiting: list[asyncio.Future[None]], error: Exception | None) -> None:
    """Ends the waits of requests; those whose clients have left are cancelled already."""
    for future in waiting:
        if not future.done():
            future.set_result(None) if error is None else future.set_exception(error)


async def post_events(request: Request) -> Response:
    """Appends the records of a body, and answers when they are durable."""
    service = request.app.state.service
    decoder = decoder_of(request.headers.get("content-type", ""))
    count = 0
    try:
        async for records in decoded(request, decoder, service.turns):
            await service.events.append(records)
            count += len(records)
        await service.events.durable()
    except (streamrec.CorruptRecordError, streamrec.errors.TruncatedShardError) as error:
        raise RequestError(str(error)) from error
    except ClientDisconnect:
        return Response(status_code=400)  # the client does not read it
    service.metrics.uploaded.inc(count)
    return JSONResponse({"records": count}, 201)
