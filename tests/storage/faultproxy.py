"""A proxy in front of a real HTTP server that does damage on demand. One request per connection.

How far a resumable upload is, the proxy answers itself: fake-gcs-server takes the question
(`Content-Range: bytes */*`) for the end of the upload, and would make the object visible with what
it has so far.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.servers.faults import Faults, Kind, decide
from tests.servers.store.routes import route


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
        stall: Send so many bytes of the body, and then nothing more until the client leaves.
        answer: Send this instead of asking the server.
        head: Rewrites the answer's head.
        body: Rewrites the request's body, to one of the same length.
        hang_up: Break the connection after so many bytes of the request's body; the server gets
            them.
        delay: Seconds before anything is done.
        until: What must have happened before anything is done.
    """

    cut: int | None = None
    stall: int | None = None
    answer: bytes | None = None
    head: Callable[[bytes], bytes] = lambda head: head
    body: Callable[[bytes], bytes] = lambda body: body
    hang_up: int | None = None
    delay: float = 0.0
    until: asyncio.Event | None = None


def status(line: str, *headers: str) -> Fault:
    """An answer without a body."""
    return Fault(
        answer="\r\n".join(
            [f"HTTP/1.1 {line}", "Content-Length: 0", "Connection: close", *headers, "", ""]
        ).encode()
    )


class DrawnFaults:
    """Chooses as `tests.servers.faults` draws, and counts the requests and their faults."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.asked: Counter[tuple[Kind, str]] = Counter()
        self.met: Counter[str] = Counter()

    def __call__(self, request: Request) -> Fault:
        asked = route(request.method, request.path)
        fate = decide(self.faults, asked.kind, asked.name, self.asked[asked.kind, asked.name])
        self.asked[asked.kind, asked.name] += 1
        self.met.update(name for name in (fate.fault, "slow" if fate.slow else "") if name)
        place = int(fate.at * _length(request))
        faults = {
            "unavailable": status("503 Slow Down"),
            "reset": Fault(cut=place),
            "stall": Fault(stall=place),
            "upload_reset": Fault(hang_up=place),
            "upload_stall": Fault(answer=b"", stall=0),
            "lost_answer": Fault(cut=0, head=lambda head: b""),
        }
        return replace(faults[fate.fault] if fate.fault else Fault(), delay=fate.delay)


def _length(request: Request) -> int:
    """How long a request's body is, or its answer's, as far as a Range says it."""
    span = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
    if span is not None:
        return int(span[2]) + 1 - int(span[1])
    return int(request.headers.get("content-length", 100_000 if request.method == "GET" else 0))


@dataclass
class _Session:
    """A resumable upload: the Range that the server has. Its requests are served one after the
    other.
    """

    stored: str = ""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass
class FaultProxy:
    """`async with FaultProxy(upstream, choose) as proxy`: `choose` says which fault a request
    meets, if any.
    """

    upstream: str
    choose: Callable[[Request], Fault | None] = lambda request: None
    log: list[Request] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._tasks: set[asyncio.Task[None]] = set()
        self._sessions: dict[str, _Session] = {}
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.netloc = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.url = f"http://{self.netloc}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def rest(self, seconds: float = 60) -> None:
        """Waits until all requests that came are answered, or their clients are gone."""
        async with asyncio.timeout(seconds):
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
            await asyncio.sleep(fault.delay)
            if fault.until is not None:
                await fault.until.wait()
            size = int(request.headers.get("content-length", 0))
            if fault.hang_up is not None:
                data = raw + await reader.readexactly(min(fault.hang_up, size))
                if (
                    request.headers.get("content-range") != "bytes */*"
                ):  # a query has no body: its head is all of it
                    await self._break_off(data)
                return
            body = fault.body(await reader.readexactly(size))
            answer = await self._told(request) if fault.answer is None else fault.answer
            if answer is None:
                once = raw.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
                await self._ask(fault, request, once + body, writer)
            else:
                writer.write(answer)
                await writer.drain()
            if fault.stall is not None:
                await reader.read()
            await asyncio.sleep(0)
            writer.write_eof()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client went away
        finally:
            await _abort(writer)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        upstream = urlsplit(self.upstream)
        return await asyncio.open_connection(upstream.hostname, upstream.port)

    async def _break_off(self, data: bytes) -> None:
        """Gives the server a part of a request."""
        _, back = await self._connect()
        back.transport.set_write_buffer_limits(0)
        back.write(data)
        await back.drain()
        await _abort(back)

    async def _ask(
        self, fault: Fault, request: Request, data: bytes, writer: asyncio.StreamWriter
    ) -> None:
        """Passes a request on, and its answer back as far as the fault lets it."""
        writer.transport.set_write_buffer_limits(
            0
        )  # aborting loses the bytes that a resting reader has not taken
        there, back = await self._connect()
        try:
            session = self._sessions.get(_session_of(request.path))
            async with session.turn if session else nullcontext():
                back.write(data)
                head = await there.readuntil(b"\r\n\r\n")
                self._heed(request, head)
            writer.write(
                fault.head(
                    head.replace(urlsplit(self.upstream).netloc.encode(), self.netloc.encode())
                )
            )
            left = next((limit for limit in (fault.cut, fault.stall) if limit is not None), 1 << 60)
            while left and (part := await there.read(min(left, 1 << 16))):
                left -= len(part)
                writer.write(part)
                await writer.drain()
        finally:
            await _abort(back)

    async def _told(self, request: Request) -> bytes | None:
        """The answer to a query of an unfinished upload; None if the server answers it."""
        name = _session_of(request.path)
        session = self._sessions.get(name)
        if session is None or request.headers.get("content-range") != "bytes */*":
            return None
        async with session.turn:
            if name not in self._sessions:
                return None
            return status(
                "308 Resume Incomplete", *([f"Range: {session.stored}"] if session.stored else [])
            ).answer

    def _heed(self, request: Request, head: bytes) -> None:
        """Follows the server's answers: an upload begins, continues, or is complete."""
        name, answer = _session_of(request.path), _parse(head)
        if name in self._sessions:
            if answer.path == "308":
                self._sessions[name].stored = answer.headers.get("range", "")
            elif answer.path[0] in "24":
                del self._sessions[name]
        elif "uploadType=resumable" in request.path and "location" in answer.headers:
            self._sessions[_session_of(answer.headers["location"])] = _Session()


@contextmanager
def in_a_thread(proxy: FaultProxy) -> Iterator[BlockingPortal]:
    """For sync code: the proxy runs in a loop of its own, where the portal calls its coroutines."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(proxy):
        yield portal


def _session_of(url: str) -> str:
    """Path and query of an upload; clients spell "%2F" as "/" and the other way round."""
    parts = urlsplit(url)
    return unquote(f"{parts.path}?{parts.query}")


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


def _parse(head: bytes) -> Request:
    """A request's head; or an answer's, whose status is the path."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    return Request(method, path, headers)
