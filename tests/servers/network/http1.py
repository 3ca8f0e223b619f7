"""HTTP/1.1, as little as a store on the loopback interface needs (RFC 9110, RFC 9112).

Heads are parsed and built here; bodies are framed by Content-Length, by chunks, or by the end of the
connection.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Literal

__all__ = [
    "BadRequestError",
    "Fields",
    "Framing",
    "Reader",
    "Request",
    "field",
    "parse_request",
    "response_head",
    "window",
]

Fields = tuple[tuple[str, str], ...]
"""Header fields, in order, as they were spelled."""

Framing = int | Literal["chunked"]
"""How a body ends: after a number of bytes, or after the chunk of length 0."""

_HEAD_LIMIT: Final = 64 * 1024
_READ: Final = 64 * 1024
_BUFFER: Final = 256 * 1024
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)


class BadRequestError(Exception):
    """What came is no HTTP/1.1 head."""


def field(fields: Fields, name: str) -> str:
    """The value of the first field of this name (in lower case), or ""."""
    return next((value for key, value in fields if key.lower() == name), "")


@dataclass(frozen=True)
class Request:
    """The head of a request; `target` is as it came: percent-encoded, with its query."""

    method: str
    target: str
    fields: Fields
    version: str = "HTTP/1.1"

    @property
    def keep_alive(self) -> bool:
        """Whether the client means to send another request on this connection."""
        wish = field(self.fields, "connection").lower()
        return wish != "close" and (self.version != "HTTP/1.0" or wish == "keep-alive")

    @property
    def framing(self) -> Framing:
        """How the end of the body is found; a request without a word of it has none."""
        return "chunked" if _chunked(self.fields) else int(field(self.fields, "content-length") or 0)


def _chunked(fields: Fields) -> bool:
    return field(fields, "transfer-encoding").lower().endswith("chunked")


def parse_request(head: bytes) -> Request:
    r"""The head of a request, without the empty line that ends it.

    Raises:
        BadRequestError: It is none.

    >>> parse_request(b"GET /b/k HTTP/1.1\r\nHost: a")
    Request(method='GET', target='/b/k', fields=(('Host', 'a'),), version='HTTP/1.1')
    """
    first, fields = _split(head)
    parts = first.split(" ")
    if len(parts) != 3 or not parts[1].startswith("/") or not parts[2].startswith("HTTP/1."):
        raise BadRequestError(f"no request line of HTTP/1.1: {first[:80]!r}")
    if not (field(fields, "content-length") or "0").isdecimal():
        raise BadRequestError(f"no Content-Length: {field(fields, 'content-length')!r}")
    return Request(parts[0], parts[1], fields, parts[2])


def _split(head: bytes) -> tuple[str, Fields]:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = [line.partition(":") for line in lines]
    if not all(colon for _, colon, _ in pairs):
        raise BadRequestError("a header line without a colon")
    return first, tuple((name, value.strip()) for name, _, value in pairs)


def response_head(status: int, fields: Fields) -> bytes:
    r"""The bytes of an answer's head.

    >>> response_head(200, (("Content-Length", "0"),))
    b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'
    """
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def window(value: str, size: int) -> tuple[int, int, int]:
    """What a Range header asks for of an object of `size` bytes: status, first byte, one past the last.

    200 is the whole object: no Range, or one that is malformed or has several parts, which a server may
    ignore (RFC 9110, 14.2). 416 is a range that begins past the end.

    >>> window("bytes=2-5", 10), window("bytes=2-", 10), window("bytes=-3", 10)
    ((206, 2, 6), (206, 2, 10), (206, 7, 10))
    >>> window("bytes=10-", 10), window("", 10), window("bytes=5-2", 10)
    ((416, 0, 0), (200, 0, 10), (200, 0, 10))
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
            if len(self._held) > _HEAD_LIMIT:
                raise BadRequestError("the head is longer than 64 KiB")
            data = self._sock.recv(_READ)
            if not data:
                if self._held:
                    raise BadRequestError("the connection ended within a head")
                return None
            self._held += data
        head = bytes(self._held[:end])
        del self._held[: end + 4]
        return head

    def body(self, framing: Framing) -> Iterator[memoryview]:
        """A body as it is on the wire (chunks with their lengths), in pieces that hold until the next is
        asked for.

        It ends early, without an error, where the connection does.

        Raises:
            BadRequestError: A chunk without a length.
        """
        if framing == "chunked":
            return self._chunks()
        return self._bytes(framing)

    def whole(self, framing: Framing) -> bytes:
        """A body as it is on the wire, in one piece; for small ones."""
        gathered = bytearray()
        for data in self.body(framing):
            gathered += data
        return bytes(gathered)

    def _bytes(self, left: int) -> Iterator[memoryview]:
        if self._held and left:
            data = bytes(self._held[:left])
            del self._held[: len(data)]
            left -= len(data)
            yield memoryview(data)
        buffer = memoryview(bytearray(min(left, _BUFFER)))
        while left and (got := self._sock.recv_into(buffer[: min(left, _BUFFER)])):
            left -= got
            yield buffer[:got]

    def _chunks(self) -> Iterator[memoryview]:
        size = -1
        while size != 0:
            line = self._line()
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError as exc:
                raise BadRequestError(f"no length of a chunk: {line[:80]!r}") from exc
            yield memoryview(line)
            if size:
                yield from self._bytes(size + 2)
        line = b"-"
        while line.strip():  # trailers, up to the empty line
            line = self._line()
            yield memoryview(line)

    def _line(self) -> bytes:
        while (end := self._held.find(b"\n")) < 0:
            data = self._sock.recv(_READ)
            if not data or len(self._held) > _HEAD_LIMIT:
                raise BadRequestError("the connection ended within a body in chunks")
            self._held += data
        line = bytes(self._held[: end + 1])
        del self._held[: end + 1]
        return line
