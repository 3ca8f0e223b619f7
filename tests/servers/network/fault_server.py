"""The fault server: the loop over requests of the simulated store.

For each request: understand it, draw its fate, open its entry in the log, wait as long as the fate says,
answer 503 where the fate says so, and else hand over to `respond`. Requests to the control path are answered
at once, without fate or entry.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.servers.control import CONTROL_PATH, FaultControl
from tests.servers.faults import NO_FAULTS, Fate, Faults
from tests.servers.network import wire
from tests.servers.network.http1 import (
    BadRequestError,
    Fields,
    Reader,
    Request,
    field,
    parse_request,
    response_head,
)
from tests.servers.network.server import Server
from tests.servers.requestlog import RequestLog
from tests.servers.store import gcs_responses, s3_responses
from tests.servers.store.routes import Route, route

__all__ = ["Exchange", "FaultServer", "discard_body", "error_body"]


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
        self.log.update(self.number, status=status, promised=promised)
        flags = socket.MSG_MORE if more and hasattr(socket, "MSG_MORE") else 0
        self.sock.sendall(response_head(status, fields), flags)

    def whole(self, status: int, body: bytes, content_type: str, fields: Fields = ()) -> None:
        """Sends a small answer whole; to HEAD only its head."""
        bare = self.request.method == "HEAD"
        about = (("Content-Type", content_type), ("Content-Length", str(len(body))), *fields)
        self.head(status, about, len(body), more=bool(body) and not bare)
        if not bare:
            self.sock.sendall(body)
            self.log.update(self.number, sent=len(body))

    def note(self, **news: object) -> None:
        """Sets fields of the entry in the log."""
        self.log.update(self.number, **news)


class FaultServer(FaultControl):
    """A server whose answers go wrong on demand; a context manager that closes it.

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
        self._connections = itertools.count()
        self._server = Server(self._serve, port, name)
        self._server.start()

    @property
    def url(self) -> str:
        """Where it listens: http://127.0.0.1:port."""
        return self._server.url

    @property
    def server(self) -> Server:
        """The sockets and threads beneath."""
        return self._server

    def close(self) -> None:
        """Breaks all connections; no thread is left. May be called twice."""
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self, sock: socket.socket) -> None:
        connection = next(self._connections)
        self._log.connected()
        reader = Reader(sock)
        try:
            while (head := reader.head()) is not None:
                request = parse_request(head)
                if request.target.partition("?")[0].startswith(CONTROL_PATH):
                    self._controlled(request, sock, reader)
                elif not self._exchange(request, sock, reader, connection):
                    return
                if not request.keep_alive:
                    return
        except BadRequestError as exc:
            body = f"{exc}\n".encode()
            fields = (("Content-Length", str(len(body))), ("Connection", "close"))
            sock.sendall(response_head(400, fields) + body)

    def _controlled(self, request: Request, sock: socket.socket, reader: Reader) -> None:
        body = reader.whole(request.framing)
        status, answer = self.answer(request.method, request.target, body)
        fields = (("Content-Type", "application/json"), ("Content-Length", str(len(answer))))
        sock.sendall(response_head(status, fields) + answer)

    def _exchange(self, request: Request, sock: socket.socket, reader: Reader, connection: int) -> bool:
        asked = route(request.method, request.target)
        faults, fate, ordinal = self.next(asked.kind, asked.name)
        wire.pace(sock, fate.rate)
        number = self._log.begin(
            connection=connection,
            kind=asked.kind,
            method=request.method,
            target=request.target,
            object=asked.name,
            range=field(request.fields, "range"),
            ordinal=ordinal,
            slow=fate.slow,
            delay=fate.delay,
            rate=wire.pacing(sock),
        )
        exchange = Exchange(request, asked, fate, sock, reader, self._log, number)
        try:
            if self._server.stopping.wait(fate.delay):
                return False
            if fate.fault == "unavailable":
                return _unavailable(exchange, faults.status, faults.retry_after)
            return self._respond(exchange)
        finally:
            self._log.end(number)


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
    received = sum(len(data) for data in exchange.reader.body(exchange.request.framing))
    exchange.note(received=received)
