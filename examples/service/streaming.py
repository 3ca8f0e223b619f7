"""A body that waits for its client, and ends when the client disconnects.

- Back-pressure: a part is made after the server has taken the previous one, and the server takes
  none while the client's socket is full. Shards are read block by block, so a slow client makes the
  service read slowly.
- If a client disconnects, or takes nothing for `PATIENCE` seconds, reading stops at once:
  connections to the store close before the response ends.
- An error before the first part has its own status (`failures.py`). A later error aborts the body:
  the service closes the connection without the end that HTTP/1.1 requires, so that no client takes
  a truncated body for a complete one. The log has the place, and
  `service_streams_total{end="failed"}` counts it. HTTP/1.0 cannot show a truncated body, so the
  service refuses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from examples.service.failures import RequestError
from examples.service.metrics import Metrics
from streamrec import StreamrecError

__all__ = ["StreamedBody"]

LOG = logging.getLogger("uvicorn.error")
PATIENCE: Final = 60.0


class StreamedBody(Response):
    """A response of many parts.

    Args:
        parts: The parts; each is made when it is sent. They are closed in any case.
        media_type: The media type of the parts.
        metrics: The counters.
    """

    def __init__(self, parts: AsyncGenerator[bytes], media_type: str, metrics: Metrics) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._parts = parts
        self._metrics = metrics
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response.

        Raises:
            StreamrecError, RequestError: The first part failed; nothing was sent.
        """
        if scope["http_version"] == "1.0":
            raise RequestError(
                "a stream needs HTTP/1.1, which tells a body that broke off (nginx: "
                "proxy_http_version)",
                505,
            )
        end, failure = "left", None
        with self._metrics.open_streams.track_inprogress():
            async with aclosing(self._parts), anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when_gone, receive, tasks.cancel_scope)
                try:
                    await self._send(send)
                    end = "complete"
                except (StreamrecError, RequestError) as error:
                    end, failure = "failed", error
                except TimeoutError:
                    LOG.warning(
                        "%s: the client took nothing for %.0f s, and was left",
                        scope["path"],
                        PATIENCE,
                    )
                tasks.cancel_scope.cancel()
        self._metrics.streams.labels(end).inc()
        if failure is not None and not self._started:
            raise failure
        if failure is not None:
            LOG.error("%s: the body was broken off: %s", scope["path"], failure)

    async def _send(self, send: Send) -> None:
        async for part in self._parts:
            await self._start(send)
            async with asyncio.timeout(PATIENCE):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await self._start(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )


async def cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    """Waits until the client disconnects, then cancels the work for it."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
