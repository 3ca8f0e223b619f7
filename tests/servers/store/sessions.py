"""Sessions: how far each resumable upload to Google Cloud Storage is, by what the real server has answered.

A client that heard no answer asks (`Content-Range: bytes */*`) and goes on from there. fake-gcs-server 1.52 takes
that question for the end of the upload, and would make the object visible with what it has so far. So the proxy
answers it, in Google's words: 308, with the Range that the server told last. What belongs to one session happens
one after the other, so that the answer heeds a request whose client has given up on it.

Source: cloud.google.com/storage/docs/performing-resumable-uploads, "Check the status of a resumable upload".
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from tests.servers.network.http1 import Request, Response
from tests.servers.network.http1 import field as header

__all__ = ["Sessions"]

_RESUME: Final = 308
_QUESTION: Final = "bytes */*"


@dataclass
class _Session:
    stored: str = ""  # the Range that the server told; "": nothing yet
    turn: threading.Lock = field(default_factory=threading.Lock)


class Sessions:
    """The sessions behind one proxy that have not ended; safe to use from any thread.

    >>> sessions = Sessions()
    >>> made = Response(200, "OK", (("Location", "http://server/upload?id=1"),))
    >>> sessions.heed(Request("POST", "/upload/storage/v1/b/b/o?uploadType=resumable", ()), made)
    >>> question = Request("PUT", "/upload?id=1", (("Content-Range", "bytes */*"),))
    >>> sessions.stored(question)
    ''
    >>> sessions.heed(Request("PUT", "/upload?id=1", ()), Response(308, "", (("Range", "bytes=0-9"),)))
    >>> sessions.stored(question)
    'bytes=0-9'
    """

    def __init__(self) -> None:
        self._open: dict[str, _Session] = {}

    @contextmanager
    def turn(self, request: Request) -> Iterator[None]:
        """Waits until every earlier request of the same session has ended, its client's patience aside."""
        session = self._open.get(_name(request.target))
        if session is None:
            yield
            return
        with session.turn:
            yield

    def stored(self, request: Request) -> str | None:
        """What the server has of the session that the request asks about, as a Range; "" where it has nothing.

        Returns:
            None where this is no such question, or the session is not known or has ended: the server answers.
        """
        session = self._open.get(_name(request.target))
        asked = header(request.fields, "content-range") == _QUESTION
        return session.stored if asked and session is not None else None

    def heed(self, request: Request, response: Response) -> None:
        """Learns from an answer of the server: a session begins, goes on, or is over."""
        name = _name(request.target)
        if name in self._open:
            if response.status == _RESUME:
                self._open[name].stored = header(response.fields, "range")
            elif response.status < 500:
                self._open.pop(name, None)
        elif "uploadType=resumable" in request.target and (location := header(response.fields, "location")):
            self._open[_name(location)] = _Session()


def _name(url: str) -> str:
    """Path and query of a session; clients spell "%2F" as "/" and the other way round.

    >>> _name("http://server/upload?name=a%2Fb") == _name("/upload?name=a/b")
    True
    """
    parts = urlsplit(url)
    return unquote(f"{parts.path}?{parts.query}")
