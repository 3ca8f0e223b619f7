"""HTTP/1.1, as little as a store on the loopback interface needs (RFC 9110, RFC 9112).

Heads are parsed and built here; Content-Length says where bodies end.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

__all__ = ["BadRequestError", "Fields", "Reader", "Request", "field", "parse_request", "response_head", "window"]

Fields = tuple[tuple[str, str], ...]
"""Header fields, in order, as they were spelled."""

_HEAD_LIMIT: Final = 64 * 1024
_READ: Final = 64 * 1024
_BUFFER: Final = 256 * 1024
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)


class BadRequestError(Exception):
    """What came is not a head of HTTP/1.1 that can be answered."""


def field(fields: Fields, name: str) -> str:
    """The value of the first field of this name (in lower case), or ""."""
    return next((value for key, value in fields if key.lower() == name), "")


@dataclass(frozen=True)
class Request:
    """The head of a request; `target` is as it came: percent-encoded, with its query."""

    method: str
    target: str
    fields: Fields

    @property
    def keep_alive(self) -> bool:
        """Whether the client means to send another request on this connection."""
        return field(self.fields, "connection").lower() != "close"

    @property
    def length(self) -> int:
        """Bytes of the body."""
        return int(field(self.fields, "content-length") or 0)


def parse_request(head: bytes) -> Request:
    """The head of a request, without the empty line that ends it.

    Raises:
        BadRequestError: It is not one, or its body comes in chunks.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = [line.partition(":") for line in lines]
    fields = tuple((name, value.strip()) for name, _, value in pairs)
    match first.split(" "):
        case [method, target, "HTTP/1.1"] if target.startswith("/") and not field(fields, "transfer-encoding"):
            return Request(method, target, fields)
    raise BadRequestError(f"not a request of HTTP/1.1 whose body has a length: {first[:80]!r}")


def response_head(status: int, fields: Fields) -> bytes:
    """The bytes of an answer's head."""
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def window(value: str, size: int) -> tuple[int, int, int]:
    """What a Range header asks for of an object of `size` bytes: status, first byte, one past the last.

    200 is the whole object: no Range, or one that is malformed or has several parts, which a server may
    ignore (RFC 9110, 14.2). 416 is a range that begins past the end.
    """
    match = _RANGE.fullmatch(value.strip())
    first, last = match.groups() if match else ("", "")
    if not first and not last:
        return 200, 0, size
    if not first:
        return (206, max(0, size - int(last)), size) if int(last) and size else (416, 0, 0)
    start, stop = int(first), min(int(last) + 1, size) if last else size
    if last and int(last) < start:
        return 200, 0, size
    return (206, start, stop) if start < size else (416, 0, 0)


class Reader:
    """Reads heads and bodies from a blocking socket; keeps bytes read ahead for the next call."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._held = bytearray()

    def head(self) -> bytes | None:
        """The next head, without its empty line; None if the peer closed before one began.

        Raises:
            BadRequestError: It is longer than 64 KiB, or the peer closed in the middle of it.
        """
        while (end := self._held.find(b"\r\n\r\n")) < 0:
            data = self._sock.recv(_READ) if len(self._held) <= _HEAD_LIMIT else b""
            if not data:
                if self._held:
                    raise BadRequestError("the head is longer than 64 KiB, or the connection ended within it")
                return None
            self._held += data
        head = bytes(self._held[:end])
        del self._held[: end + 4]
        return head

    def body(self, left: int) -> Iterator[memoryview]:
        """The next `left` bytes, in pieces that hold until the next is asked for; fewer if the connection ends."""
        if self._held and left:
            data = bytes(self._held[:left])
            del self._held[: len(data)]
            left -= len(data)
            yield memoryview(data)
        buffer = memoryview(bytearray(min(left, _BUFFER)))
        while left and (got := self._sock.recv_into(buffer[: min(left, _BUFFER)])):
            left -= got
            yield buffer[:got]
