"""A fault proxy: the faults of `tests.servers.faults` in front of a real server, uploads included.

    client  ->  FaultProxy on 127.0.0.1  ->  SeaweedFS, fake-gcs-server, ... over http

Requests pass as they came, with their Host field, so that signatures stay valid; what the proxy alters is
the answer. What differs from the simulated store, because the real server answers:

* `ignore_range` leaves the Range field out on the way to the server. A request whose signature covers that
  field (`SignedHeaders`) would be refused then, so it passes unharmed.
* `change` refuses one request that names a version (If-Match: 412; generation=: 404), as if the object had
  been replaced. Requests that name none pass. For a lasting change, write the object anew to the real server.
* `upload_reset` breaks a request off at a place in its body, before the server has all of it.
* `upload_stall` lets as much through, takes the rest from the client, and answers nothing until the client leaves.
* `lost_answer` lets the server do it all, and resets the connection in place of the answer.
* Faults of bodies need a Content-Length: an answer in chunks passes unharmed.
* A Location that leads to the real server is turned to the proxy, so that resumable uploads stay behind it.
* How far a resumable upload is, the proxy answers itself: fake-gcs-server cannot (see `sessions.py`).

>>> import pathlib, tempfile, urllib.request
>>> from tests.servers.objectstore import ObjectStore
>>> with tempfile.TemporaryDirectory() as root:
...     pathlib.Path(root, "bucket").mkdir()
...     _ = pathlib.Path(root, "bucket", "key").write_bytes(b"0123456789")
...     with ObjectStore(root) as real, FaultProxy(real.url, Faults(truncate=1.0, at=0.5)) as proxy:
...         urllib.request.urlopen(f"{proxy.url}/bucket/key").read()
b'01234'

As a program it prints its URL and serves until it is interrupted:

    python -m tests.servers.proxy --target http://127.0.0.1:8333 --port 0 --faults '{"reset": 0.2}'
"""

from __future__ import annotations

from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.network import relay, wire
from tests.servers.network.fault_server import Exchange, FaultServer, discard_body, error_body
from tests.servers.network.http1 import BadRequestError, Request, Response, field, parse_response, request_head
from tests.servers.network.shapes import Shape
from tests.servers.network.upstream import Link, Links, UpstreamError
from tests.servers.program import run
from tests.servers.store.sessions import Sessions

__all__ = ["FaultProxy"]


class FaultProxy(FaultServer):
    """Passes requests on to `target`, in threads of this process, until it is closed.

    Args:
        target: The real server, http://host:port.
        faults: In force at the start; none by default.
        port: 0 lets the system choose.

    Raises:
        ValueError: `target` is no such URL.
    """

    def __init__(self, target: str, faults: Faults = NO_FAULTS, port: int = 0) -> None:
        self._target = target.rstrip("/")
        self._links = Links(target)
        self._sessions = Sessions()
        super().__init__(self._relay, faults, port, "faultproxy")

    def close(self) -> None:
        """Breaks off what is under way; no thread and no connection is left after it."""
        super().close()
        self._links.close()

    def _relay(self, exchange: Exchange) -> bool:
        """Passes one request on and its answer back; whether the client's connection can carry another."""
        if exchange.fate.fault == "change" and (status := relay.refusal(exchange.request, exchange.route)):
            exchange.note(fault="change")
            body, content_type = error_body(exchange.route, status, "PreconditionFailed", "It has changed.")
            exchange.whole(status, body, content_type)
            return True
        request = relay.forwarded(exchange.request, exchange.fate.fault)
        if field(exchange.request.fields, "range") and not field(request.fields, "range"):
            exchange.note(fault="ignore_range")
        try:
            with self._sessions.turn(request):
                stored = self._sessions.stored(request)
                if stored is not None:
                    return _resume(exchange, stored)
                with self._links.link(self.server) as link:
                    return self._pass(exchange, request, link)
        except (UpstreamError, BadRequestError) as exc:
            body, content_type = error_body(exchange.route, 502, "BadGateway", str(exc))
            exchange.whole(502, body, content_type, (("Connection", "close"),))
            return False

    def _pass(self, exchange: Exchange, request: Request, link: Link) -> bool:
        if field(exchange.request.fields, "expect"):
            exchange.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        limit = relay.upload_limit(exchange.fate, request.framing)
        taken = _upload(exchange, request, link, limit)
        if limit is not None and taken == limit:
            return _broken_off(exchange)
        response = _next_response(link)
        self._sessions.heed(request, response)
        if exchange.fate.fault == "lost_answer":
            exchange.note(fault="lost_answer")
            wire.reset(exchange.sock)
            return False
        return self._answer(exchange, response, link) and taken is not None

    def _answer(self, exchange: Exchange, response: Response, link: Link) -> bool:
        framing = response.framing(exchange.request.method)
        body = relay.shaped(exchange.route.kind, exchange.fate, response, framing)
        if body.fault and body.fault != "ignore_range":
            exchange.note(fault=body.fault)
        exchange.note(start=relay.first_byte(response) + body.skipped)
        fields = relay.answer_fields(response, body, framing, (self._target, self.url))
        at_once = body.bytes_sent > 0 and framing != "chunked"
        exchange.head(response.status, fields, body.promised, reason=response.reason, more=at_once)
        sent = 0
        try:
            for data in relay.picked(link.reader.body(framing), body.pieces):
                exchange.sock.sendall(data)
                sent += len(data)
        except BadRequestError:  # the server broke off within a chunk: so does the answer
            return False
        finally:
            exchange.note(sent=sent)
        return _finish(exchange, response, link, body, sent)


def _resume(exchange: Exchange, stored: str) -> bool:
    """Tells how far a resumable upload is; whether the connection can carry another request."""
    discard_body(exchange)
    fields = (("Content-Length", "0"), *((("Range", stored),) if stored else ()))
    exchange.head(308, fields, 0, reason="Resume Incomplete", more=False)
    return True


def _broken_off(exchange: Exchange) -> bool:
    """Resets or stalls an upload of which the server has a part; never can its connection carry another."""
    exchange.note(fault=exchange.fate.fault)
    if exchange.fate.fault == "upload_stall":
        exchange.log.stalled(exchange.number)
        wire.stall(exchange.sock)
    else:
        wire.reset(exchange.sock)
    return False


def _upload(exchange: Exchange, request: Request, link: Link, limit: int | None) -> int | None:
    """Passes the request's head and body on, no more of the body than `limit`.

    Returns:
        Bytes of the body that were passed on; None where the server stopped reading before the end, as one
        does that has an error to tell.

    Raises:
        ConnectionResetError: The client left before its body was whole.
    """
    if not _pushed(link, request_head(request)):
        return None
    taken = 0
    try:
        for data in exchange.reader.body(request.framing):
            part = data if limit is None else data[: limit - taken]
            if not _pushed(link, part):
                return None
            taken += len(part)
            if taken == limit:
                return taken
    finally:
        exchange.note(received=taken)
    if request.framing not in ("chunked", taken):
        raise ConnectionResetError(f"the client left after {taken} of {request.framing} bytes")
    return taken


def _pushed(link: Link, data: bytes | memoryview) -> bool:
    try:
        link.sock.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _next_response(link: Link) -> Response:
    """The head of the answer, interim ones (100 Continue) left out."""
    while True:
        try:
            head = link.reader.head()
        except ConnectionResetError as exc:
            raise UpstreamError("the real server reset the connection without an answer") from exc
        if head is None:
            raise UpstreamError("the real server closed the connection without an answer")
        response = parse_response(head)
        if response.status >= 200:
            return response


def _finish(exchange: Exchange, response: Response, link: Link, body: Shape, sent: int) -> bool:
    """Ends the answer as its shape says, and says whether the client's connection can carry another request.

    The link is kept where the server's answer was read to its end.
    """
    framing = response.framing(exchange.request.method)
    read_all = framing == "chunked" or (framing == body.skipped + sent and body.ending == "whole")
    link.reusable = read_all and field(response.fields, "connection").lower() != "close"
    if body.ending == "reset":
        wire.reset(exchange.sock)
    elif body.ending == "stall":
        exchange.log.stalled(exchange.number)
        wire.stall(exchange.sock)
    return body.ending == "whole" and (framing == "chunked" or body.promised == sent)


if __name__ == "__main__":
    run(
        "python -m tests.servers.proxy",
        {"--target": "the real server, http://host:port"},
        lambda options, faults, port: FaultProxy(options["target"], faults, port),
    )
