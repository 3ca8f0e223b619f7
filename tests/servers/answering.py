"""A web server whose answers a function gives: for tests of stores that say something odd."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

__all__ = ["Answer", "Asked", "answering"]


class Asked(NamedTuple):
    """A request; the names of its headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    """An answer; Content-Length is its length unless `headers` sets another one."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}


@contextmanager
def answering(respond: Callable[[Asked], Answer], host: str = "127.0.0.1") -> Iterator[str]:
    """The URL of a server that runs meanwhile.

    Args:
        respond: Gives each answer, in a thread of its connection; a HEAD gets it without the body.
        host: An address of this machine.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            answer = respond(Asked(self.command, self.path, headers, body))
            self.send_response_only(answer.status)
            for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            self.close_connection |= "close" in self.headers.get_all("Connection", ())  # what a proxy adds, too

        do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - the names that HTTP gives them

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    with Server((host, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://{host}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
