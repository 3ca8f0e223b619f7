"""A proxy in front of a real HTTP server that does damage on demand. One request per connection."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Request:
    """What a client asked for: method, path with query, and the headers under lower-case names."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Fault:
    """What to do to one answer.

    Attributes:
        cut: Break the connection after so many bytes of the body.
        stall: Send so many bytes of the body, and then nothing more, ever.
        answer: Send this instead of asking the server.
        head: Rewrites the answer's head.
        body: Rewrites the request's body, to one of the same length.
        hang_up: Break the connection after so many bytes of the request's body.
    """

    cut: int | None = None
    stall: int | None = None
    answer: bytes | None = None
    head: Callable[[bytes], bytes] = lambda head: head
    body: Callable[[bytes], bytes] = lambda body: body
    hang_up: int | None = None


def status(line: str, *headers: str) -> Fault:
    """An answer without a body."""
    return Fault(
        answer="\r\n".join([f"HTTP/1.1 {line}", "Content-Length: 0", "Connection: close", *headers, "", ""]).encode()
    )


@dataclass
class FaultProxy:
    """`async with FaultProxy(upstream, choose) as proxy`: `choose` says which fault a request meets, if any."""

    upstream: str
    choose: Callable[[Request], Fault | None] = lambda request: None
    log: list[Request] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.netloc = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.url = f"http://{self.netloc}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def rest(self) -> None:
        """Waits until all requests that came are answered, or their clients are gone."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def ranges(self) -> list[str]:
        """The Range headers of all GETs so far."""
        return [request.headers.get("range", "") for request in self.log if request.method == "GET"]

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            raw = await reader.readuntil(b"\r\n\r\n")
            request = _parse(raw)
            if "expect" in request.headers:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.log.append(request)
            fault = self.choose(request) or Fault()
            if fault.hang_up is not None:
                await reader.readexactly(fault.hang_up)
                return
            body = await reader.readexactly(int(request.headers.get("content-length", 0)))
            await self._answer(fault, raw, fault.body(body), writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client went away
        finally:
            await _abort(writer)

    async def _answer(self, fault: Fault, raw: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        if fault.answer is not None:
            writer.write(fault.answer)
            await writer.drain()
            writer.write_eof()
            return
        writer.transport.set_write_buffer_limits(0)  # what a reader who rests has not taken is lost by aborting
        upstream = urlsplit(self.upstream)
        there, back = await asyncio.open_connection(upstream.hostname, upstream.port)
        try:
            back.write(raw.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + body)
            head = await there.readuntil(b"\r\n\r\n")
            writer.write(fault.head(head.replace(upstream.netloc.encode(), self.netloc.encode())))
            left = next((limit for limit in (fault.cut, fault.stall) if limit is not None), 1 << 60)
            while left and (data := await there.read(min(left, 1 << 16))):
                left -= len(data)
                writer.write(data)
                await writer.drain()
            if fault.stall is not None:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            writer.write_eof()
        finally:
            await _abort(back)


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


def _parse(head: bytes) -> Request:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    return Request(method, path, headers)
