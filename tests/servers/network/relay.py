"""Relay: what the proxy makes of a request and of its answer. Pure; `tests.servers.proxy` does the
sending.

A field that belongs to one connection (RFC 9110, 7.6.1) is not passed on. Everything else keeps its order
and its spelling, because clients sign some of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from tests.servers.faults import Fate, Kind
from tests.servers.network.http1 import Fields, Framing, Request, Response, field
from tests.servers.network.shapes import Piece, Shape, shape
from tests.servers.store.routes import Route

__all__ = ["answer_fields", "first_byte", "forwarded", "picked", "refusal", "shaped", "upload_limit"]

_HOP: Final = frozenset({"connection", "keep-alive", "proxy-connection", "expect"})
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)", re.ASCII)
_IN_CHUNKS: Final = 64 * 1024  # the length of an upload in chunks is not known before its end


def forwarded(request: Request, fault: str) -> Request:
    """The request as the server gets it: `ignore_range` takes the Range out unless a signature covers it.

    >>> asked = Request("GET", "/b/k", (("Host", "h"), ("Range", "bytes=0-1"), ("Connection", "keep-alive")))
    >>> forwarded(asked, "").fields
    (('Host', 'h'), ('Range', 'bytes=0-1'))
    >>> forwarded(asked, "ignore_range").fields
    (('Host', 'h'),)
    """
    drop = _HOP | {"range"} if fault == "ignore_range" and not _range_signed(request) else _HOP
    return replace(request, fields=tuple(pair for pair in request.fields if pair[0].lower() not in drop))


def _range_signed(request: Request) -> bool:
    match = re.search(r"SignedHeaders=([^,\s]*)", field(request.fields, "authorization"))
    return match is not None and "range" in match.group(1).split(";")


def refusal(request: Request, asked: Route) -> int:
    """The status that tells a client that the version it names is gone; 0 where it names none."""
    if field(request.fields, "if-match") or field(request.fields, "x-goog-if-generation-match"):
        return 412
    if asked.query.get("ifGenerationMatch"):
        return 412
    return 404 if asked.query.get("generation") else 0


def upload_limit(fate: Fate, framing: Framing) -> int | None:
    """How many bytes of an upload's body are let through before it breaks off or stalls; None is all of it."""
    if fate.fault not in ("upload_reset", "upload_stall") or framing == 0:
        return None
    return int(fate.at * (framing if isinstance(framing, int) else _IN_CHUNKS))


def shaped(kind: Kind, fate: Fate, response: Response, framing: Framing) -> Shape:
    """What the fate makes of the answer's body; only bytes of an object of a known length can suffer."""
    if not isinstance(framing, int):
        return Shape("", 0, 0, (Piece(0, 1 << 62),))
    hit = kind == "read" and response.status in (200, 206)
    return shape(fate.fault if hit and fate.fault != "change" else "", fate.at, framing, partial=response.status == 206)


def first_byte(response: Response) -> int:
    """The first byte of the object that the answer holds, by its Content-Range; 0 without one."""
    match = _CONTENT_RANGE.fullmatch(field(response.fields, "content-range"))
    return int(match.group(1)) if match else 0


def answer_fields(response: Response, body: Shape, framing: Framing, turn: tuple[str, str]) -> Fields:
    """The fields of the answer as the client gets it.

    Args:
        response: The server's.
        body: What is made of its body.
        framing: Of the server's body.
        turn: The server's URL and the proxy's: a Location that begins with the one is turned to the other.
    """
    fields = [pair for pair in response.fields if pair[0].lower() not in _HOP]
    if framing == "close":
        fields.append(("Connection", "close"))
    return tuple((name, _altered(name.lower(), value, body, framing, turn)) for name, value in fields)


def _altered(name: str, value: str, body: Shape, framing: Framing, turn: tuple[str, str]) -> str:
    if name == "content-length" and framing:  # the answer to HEAD has a length and no body
        return str(body.promised)
    if name == "location" and value.startswith(turn[0]):
        return turn[1] + value[len(turn[0]) :]
    match = _CONTENT_RANGE.fullmatch(value) if name == "content-range" and body.skipped else None
    return f"bytes {int(match[1]) + body.skipped}-{match[2]}/{match[3]}" if match else value


def picked(data: Iterable[memoryview], pieces: Sequence[Piece]) -> Iterator[memoryview | bytes]:
    """What the pieces leave of a body that comes in `data`; nothing is read past the last piece.

    >>> b"".join(picked([memoryview(b"0123"), memoryview(b"4567")], (Piece(1, 3), Piece(5, 6, 1))))
    b'124'
    """
    offset, last = 0, max((piece.stop for piece in pieces), default=0)
    if not last:
        return
    for chunk in data:
        for piece in pieces:
            part = chunk[max(piece.start - offset, 0) : max(piece.stop - offset, 0)]
            if part:
                yield bytes(part).translate(_table(piece.mask)) if piece.mask else part
        offset += len(chunk)
        if offset >= last:
            return


def _table(mask: int) -> bytes:
    return bytes(byte ^ mask for byte in range(256))
