"""HTTP/1.1 for servers on the loopback interface (RFC 9110, RFC 9112): connections, heads of
answers, ranges.
"""

import re
from abc import abstractmethod
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

Fields = tuple[tuple[str, str], ...]
"""Header fields, in order, as they were spelled."""

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)


class Connection(BaseHTTPRequestHandler):
    """A connection of a client, in a thread of its own."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @abstractmethod
    def answer(self) -> None:
        """Answers a request, whose head was read; `close_connection` says whether it is the last
        one.
        """

    def do_GET(self) -> None:
        self.answer()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - the names that HTTP gives them

    def body(self) -> bytes:
        """The request's body."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def response_head(status: int, fields: Fields) -> bytes:
    """The bytes of an answer's head."""
    lines = [
        f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}",
        *(f"{name}: {value}" for name, value in fields),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def window(value: str, size: int) -> tuple[int, int, int]:
    """What a Range header asks for of an object of `size` bytes: status, first byte, one past the
    last.

    200 is the whole object: no Range, or one that is malformed or has several parts, which a server
    may ignore (RFC 9110, 14.2). 416 is a range that begins past the end.
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
