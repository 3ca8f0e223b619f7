"""A web server whose answers a function gives: for tests of stores that say something odd."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import NamedTuple

from tests.servers.network.http1 import Connection, response_head


class Asked(NamedTuple):
    """A request; the names of its headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    """An answer; Content-Length is its length unless `headers` sets another one. An empty one
    leaves it out: then the body ends with the connection, as in HTTP/1.0.
    """

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

    class Client(Connection):
        def answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = respond(Asked(self.command, self.path, headers, self.body()))
            fields = {"Content-Length": str(len(answer.body)), **answer.headers}
            if not fields["Content-Length"]:
                fields = {**fields, "Connection": "close"}
                del fields["Content-Length"]
            head = response_head(answer.status, tuple(fields.items()))
            self.close_connection |= fields.get("Connection") == "close"
            self.wfile.write(head + answer.body if self.command != "HEAD" else head)
            self.close_connection |= "close" in self.headers.get_all(
                "Connection", ()
            )  # what a proxy adds, too

    class Server(ThreadingHTTPServer):
        block_on_close = False

    with Server((host, 0), Client) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://{host}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
