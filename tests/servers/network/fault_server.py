"""The fault server: a socket on the loopback interface, a thread for each connection, and the loop over its requests.

For each request: understand it, draw its fate, open its entry in the log, wait as long as the fate says,
answer 503 where the fate says so, and else hand over to `respond`. Requests to the control path are answered
at once, without fate or entry.

Threads with blocking sockets, because `sendfile` then sleeps in the kernel for a whole body: measured at 16
connections paced to 60 MB/s, 0.07 CPU-s/GB against 0.11 for asyncio's `sock_sendfile`.

A client that vanishes ends its own connection and nothing else. After `close` no thread of the server is left, whatever
it was doing: every socket is shut down, and delays end.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tests.servers.control import CONTROL_PATH, FaultControl
from tests.servers.faults import NO_FAULTS, Fate, Faults
from tests.servers.network import wire
from tests.servers.network.http1 import BadRequestError, Fields, Reader, Request, field, parse_request, response_head
from tests.servers.requestlog import RequestLog
from tests.servers.store import gcs_responses, s3_responses
from tests.servers.store.routes import Route, route

__all__ = ["Exchange", "FaultServer", "discard_body", "error_body"]

_BACKLOG = 512


@dataclass(frozen=True)
class Exchange:
    """One request that is being answered.

    Args:
        request: Its head.
        route: What it asks.
        fate: What happens to it; `unavailable` and the delay are done with already.
        sock: The client's connection, paced.
        reader: Reads the request's body off it.
        log: Where its entry is.
        number: The entry's number.
    """

    request: Request
    route: Route
    fate: Fate
    sock: socket.socket
    reader: Reader
    log: RequestLog
    number: int

    def head(self, status: int, fields: Fields, promised: int, *, more: bool = True) -> None:
        """Sends the head of the answer and enters it in the log; `more` says that a body follows at once."""
        self.note(status=status, promised=promised)
        flags = socket.MSG_MORE if more and hasattr(socket, "MSG_MORE") else 0
        self.sock.sendall(response_head(status, fields), flags)

    def whole(self, status: int, body: bytes, content_type: str, fields: Fields = ()) -> None:
        """Sends a small answer whole; to HEAD only its head."""
        bare = self.request.method == "HEAD"
        about = (("Content-Type", content_type), ("Content-Length", str(len(body))), *fields)
        self.head(status, about, len(body), more=bool(body) and not bare)
        if not bare:
            self.sock.sendall(body)
            self.note(sent=len(body))

    def note(self, **news: object) -> None:
        """Sets fields of the entry in the log."""
        self.log.update(self.number, **news)


class FaultServer(FaultControl):
    """A server on 127.0.0.1 whose answers go wrong on demand; a context manager that closes it.

    Args:
        respond: Answers one request; returns whether the connection can carry another.
        faults: In force at the start.
        port: 0 lets the system choose.
        name: Of the threads.
    """

    def __init__(
        self,
        respond: Callable[[Exchange], bool],
        faults: Faults = NO_FAULTS,
        port: int = 0,
        name: str = "store",
    ) -> None:
        super().__init__(faults)
        self._respond = respond
        self._name = name
        self._stopping = threading.Event()
        self._open: dict[threading.Thread, socket.socket] = {}
        self._listener = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
        self._address = self._listener.getsockname()
        self.url = f"http://127.0.0.1:{self._address[1]}"
        self._acceptor = threading.Thread(target=self._accept, name=name, daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Stops listening, breaks all connections, and returns when every thread has ended. May be called twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        with contextlib.suppress(OSError):  # wakes the acceptor on every system; on Linux alone shutdown would do
            socket.create_connection(self._address).close()
        self._acceptor.join()
        self._listener.close()
        with self._changed:
            still_open = list(self._open.items())
        for _, sock in still_open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread, _ in still_open:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        for connection in itertools.count():
            try:
                sock, _ = self._listener.accept()
            except OSError:  # the client was gone before it was accepted, or no descriptor was free
                if self._stopping.is_set():
                    return
                continue
            if self._stopping.is_set():
                sock.close()
                return
            thread = threading.Thread(target=self._run, args=(sock, connection), name=self._name, daemon=True)
            with self._changed:
                self._open[thread] = sock
            thread.start()

    def _run(self, sock: socket.socket, connection: int) -> None:
        try:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._serve(sock, connection)
        finally:
            sock.close()
            with self._changed:
                del self._open[threading.current_thread()]

    def _serve(self, sock: socket.socket, connection: int) -> None:
        reader = Reader(sock)
        try:
            while (head := reader.head()) is not None:
                request = parse_request(head)
                if request.target.partition("?")[0] == CONTROL_PATH:
                    answer = self.answer(b"".join(map(bytes, reader.body(request.length))))
                    sock.sendall(response_head(200, (("Content-Length", str(len(answer))),)) + answer)
                elif not self._exchange(request, sock, reader, connection):
                    return
                if not request.keep_alive:
                    return
        except BadRequestError as exc:
            body = f"{exc}\n".encode()
            sock.sendall(response_head(400, (("Content-Length", str(len(body))), ("Connection", "close"))) + body)

    def _exchange(self, request: Request, sock: socket.socket, reader: Reader, connection: int) -> bool:
        asked = route(request.method, request.target)
        faults, fate, ordinal = self.next(asked.kind, asked.name)
        wire.pace(sock, fate.rate)
        number = self.begin(
            connection=connection,
            kind=asked.kind,
            method=request.method,
            object=asked.name,
            ordinal=ordinal,
            slow=fate.slow,
            delay=fate.delay,
            rate=wire.pacing(sock),
        )
        exchange = Exchange(request, asked, fate, sock, reader, self, number)
        try:
            if self._stopping.wait(fate.delay):
                return False
            if fate.fault == "unavailable":
                return _unavailable(exchange, faults.status, faults.retry_after)
            return self._respond(exchange)
        finally:
            self.end(number)


_REFUSALS = {
    400: ("ExpiredToken", "The provided token has expired."),
    401: ("ExpiredToken", "The provided token has expired."),
    403: ("AccessDenied", "Access Denied."),
    429: ("TooManyRequests", "Please reduce your request rate."),
    503: ("SlowDown", "Please reduce your request rate."),
}


def _unavailable(exchange: Exchange, status: int, retry_after: int | None) -> bool:
    """Refuses a request. A client that waits for "100 Continue" gets it instead, and the connection ends."""
    exchange.note(fault="unavailable")
    expects = field(exchange.request.fields, "expect") != ""
    if not expects:
        discard_body(exchange)
    fields: Fields = () if retry_after is None else (("Retry-After", str(retry_after)),)
    fields += (("Connection", "close"),) if expects else ()
    code, message = _REFUSALS.get(status, ("InternalError", "We encountered an internal error. Please try again."))
    body, content_type = error_body(exchange.route, status, code, message)
    exchange.whole(status, body, content_type, fields)
    return not expects


def error_body(asked: Route, status: int, code: str, message: str) -> tuple[bytes, str]:
    """The body of an error in the dialect of the request, and its content type."""
    if asked.api == "gcs":
        return gcs_responses.error_json(status, message), "application/json"
    return s3_responses.error_xml(code, message, f"/{asked.name}"), "application/xml"


def discard_body(exchange: Exchange) -> None:
    """Reads the request's body and forgets it."""
    for _ in exchange.reader.body(exchange.request.length):
        pass
