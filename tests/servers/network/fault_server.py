"""The fault server: a socket on the loopback interface, a thread for each connection, and the loop
over its requests.

For each request: understand it, draw its fate, open its entry in the log, wait as long as the fate
says, answer 503 where the fate says so, and else hand over to `respond`. Requests to the control
path are answered at once, without fate or entry.

Threads with blocking sockets, because `sendfile` then sleeps in the kernel for a whole body:
measured at 16 connections paced to 60 MB/s, 0.07 CPU-s/GB against 0.11 for asyncio's
`sock_sendfile`.

A client that vanishes ends its own connection and nothing else. After `close` no thread of the
server is left, whatever it was doing: every socket is shut down, and delays end.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import Any, Self

from tests.servers.control import CONTROL_PATH, FaultControl
from tests.servers.faults import NO_FAULTS, Fate, Faults
from tests.servers.network import wire
from tests.servers.network.http1 import Connection, Fields, response_head
from tests.servers.requestlog import RequestLog
from tests.servers.store import gcs_responses, s3_responses
from tests.servers.store.routes import Route, route


@dataclass(frozen=True)
class Exchange:
    """One request that is being answered.

    Args:
        client: Its connection, paced; its head was read.
        route: What it asks.
        fate: What happens to it; `unavailable` and the delay are done with already.
        log: Where its entry is.
        number: The entry's number.
    """

    client: Connection
    route: Route
    fate: Fate
    log: RequestLog
    number: int

    def field(self, name: str) -> str:
        """The value of a field of the request's head, or ""."""
        return str(self.client.headers.get(name, ""))

    def head(self, status: int, fields: Fields, promised: int, *, more: bool = True) -> None:
        """Sends the head of the answer and enters it in the log; `more` says that a body follows at
        once.
        """
        self.note(status=status, promised=promised)
        flags = socket.MSG_MORE if more and hasattr(socket, "MSG_MORE") else 0
        self.client.connection.sendall(response_head(status, fields), flags)

    def whole(self, status: int, body: bytes, content_type: str, fields: Fields = ()) -> None:
        """Sends a small answer whole; to HEAD only its head."""
        bare = self.client.command == "HEAD"
        about = (("Content-Type", content_type), ("Content-Length", str(len(body))), *fields)
        self.head(status, about, len(body), more=bool(body) and not bare)
        if not bare:
            self.client.connection.sendall(body)
            self.note(sent=len(body))

    def note(self, **news: object) -> None:
        """Sets fields of the entry in the log."""
        self.log.update(self.number, **news)


class _Client(Connection):
    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def handle_expect_100(self) -> bool:
        """Gives no leave to send a body: the answer is a refusal."""
        return True

    def answer(self) -> None:
        self.close_connection |= not self.server.answer(self)


class _Server(ThreadingHTTPServer):
    """Numbers its connections, and breaks them when it is closed."""

    request_queue_size = 512
    daemon_threads = False

    def __init__(self, port: int, answer: Callable[[_Client], bool]) -> None:
        super().__init__(("127.0.0.1", port), _Client)
        self.answer = answer
        self.connections: dict[socket.socket, int] = {}
        self._numbers = itertools.count()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections[request] = next(self._numbers)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        for sock in list(self.connections):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        super().server_close()


class FaultServer(FaultControl):
    """A server on 127.0.0.1 whose answers go wrong on demand; a context manager that closes it.

    Args:
        respond: Answers one request; returns whether the connection can carry another.
        faults: In force at the start.
        port: 0 lets the system choose.
    """

    def __init__(
        self, respond: Callable[[Exchange], bool], faults: Faults = NO_FAULTS, port: int = 0
    ) -> None:
        super().__init__(faults)
        self._respond = respond
        self._stopping = threading.Event()
        self._server = _Server(port, self._answer)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops listening, breaks all connections, and returns when every thread has ended. May be
        called twice.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, client: _Client) -> bool:
        sock = client.connection
        if client.path.partition("?")[0] == CONTROL_PATH:
            answer = self.answer(client.body())
            sock.sendall(response_head(200, (("Content-Length", str(len(answer))),)) + answer)
            return True
        asked = route(client.command, client.path)
        faults, fate, ordinal = self.next(asked.kind, asked.name)
        wire.pace(sock, fate.rate)
        number = self.begin(
            connection=self._server.connections[sock],
            kind=asked.kind,
            method=client.command,
            object=asked.name,
            ordinal=ordinal,
            slow=fate.slow,
            delay=fate.delay,
            rate=wire.pacing(sock),
        )
        exchange = Exchange(client, asked, fate, self, number)
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
    """Refuses a request. A client that waits for "100 Continue" gets it instead, and the connection
    ends.
    """
    exchange.note(fault="unavailable")
    expects = exchange.field("expect") != ""
    if not expects:
        exchange.client.body()
    fields: Fields = () if retry_after is None else (("Retry-After", str(retry_after)),)
    fields += (("Connection", "close"),) if expects else ()
    code, message = _REFUSALS.get(
        status, ("InternalError", "We encountered an internal error. Please try again.")
    )
    body, content_type = error_body(exchange.route, status, code, message)
    exchange.whole(status, body, content_type, fields)
    return not expects


def error_body(asked: Route, status: int, code: str, message: str) -> tuple[bytes, str]:
    """The body of an error in the dialect of the request, and its content type."""
    if asked.api == "gcs":
        return gcs_responses.error_json(status, message), "application/json"
    return s3_responses.error_xml(code, message, f"/{asked.name}"), "application/xml"
