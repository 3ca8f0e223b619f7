"""Upstream: connections to the real server behind a proxy, kept for the next request.

A connection that the server has closed meanwhile is found out before it is used: an idle one has nothing to
read.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.servers.network.http1 import Reader
from tests.servers.network.server import Server

__all__ = ["Link", "Links", "UpstreamError"]


class UpstreamError(Exception):
    """The real server cannot be reached, or what it answers is no HTTP."""


@dataclass
class Link:
    """A connection to the server; `reusable` is set by who has read an answer to its end."""

    sock: socket.socket
    reader: Reader
    reusable: bool = False


class Links:
    """Idle connections to one server; safe to use from any thread.

    Args:
        url: Of the server, http only.

    Raises:
        ValueError: The URL is not http://host:port.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"a proxy's target is http://host:port without a path, not {url!r}")
        self._address = (parts.hostname, parts.port or 80)
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._closed = False

    @contextlib.contextmanager
    def link(self, server: Server) -> Iterator[Link]:
        """A connection for one request. It is kept where its user has set `reusable`, else closed.

        While it is held, closing `server` breaks it off.

        Raises:
            UpstreamError: The server cannot be reached.
            ConnectionAbortedError: `server` is closing.
        """
        link = self._take() or self._connect()
        link.reusable = False
        try:
            with server.watched(link.sock):
                yield link
        except BaseException:
            link.reusable = False
            raise
        finally:
            self._give(link)

    def close(self) -> None:
        """Closes the idle connections; those in use are closed when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for link in idle:
            link.sock.close()

    def _take(self) -> Link | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                link = self._idle.pop()
            if not select.select([link.sock], [], [], 0)[0]:
                return link
            link.sock.close()

    def _connect(self) -> Link:
        try:
            sock = socket.create_connection(self._address)
        except OSError as exc:
            raise UpstreamError(f"the real server at {self._address} cannot be reached: {exc}") from exc
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Link(sock, Reader(sock))

    def _give(self, link: Link) -> None:
        with self._lock:
            if link.reusable and not self._closed:
                self._idle.append(link)
                return
        link.sock.close()
