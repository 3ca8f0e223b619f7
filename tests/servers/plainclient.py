"""A plain client: one request on one connection, and how its body ended. No retry, no redirect."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

__all__ = ["Answer", "ask"]


@dataclass(frozen=True)
class Answer:
    """What came back.

    Args:
        status: Of the answer.
        headers: Its fields.
        body: All bytes that came, also where the body broke off after them.
        error: What broke it off, or None.
    """

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    error: Exception | None


def ask(
    url: str,
    target: str,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
    body: bytes | None = None,
    seconds: float = 30.0,
) -> Answer:
    """Sends one request and reads the answer to its end, or to where it breaks off.

    Args:
        url: The server's URL; its path is not used.
        target: Path and query, percent-encoded.
        headers: Fields beside Host and Content-Length.
        method: Any.
        body: Of the request.
        seconds: Time limit for each wait; a body that stalls ends with a TimeoutError in `error`.

    Raises:
        OSError: No head of an answer came.
        http.client.HTTPException: Likewise.
    """
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=seconds)
    try:
        connection.request(method, target, body, dict(headers or {}))
        response = connection.getresponse()
        got = bytearray()
        error: Exception | None = None
        missing = response.length or 0  # None where the body comes in chunks, which tell their end
        try:
            while data := response.read1(1 << 16):  # read() would lose what came before an error
                got += data
            if len(got) < missing:  # read1 is silent about it
                error = http.client.IncompleteRead(bytes(got), missing - len(got))
        except (OSError, http.client.HTTPException) as exc:
            error = exc
        return Answer(response.status, response.headers, bytes(got), error)
    finally:
        connection.close()
