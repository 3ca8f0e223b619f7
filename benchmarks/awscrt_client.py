"""awscrt's HTTP client over TLS, for `benchmarks.tls`: bodies are dropped as they come.

It runs with an interpreter of its own, because botocore behaves in another way where awscrt is
installed. That interpreter has neither streamrec nor its requirements.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from awscrt.http import HttpClientConnection, HttpHeaders, HttpRequest
from awscrt.io import (
    ClientBootstrap,
    ClientTlsContext,
    DefaultHostResolver,
    EventLoopGroup,
    TlsContextOptions,
)

from benchmarks.harness.meter import Figures, passes


def measured(port: int, paths: list[str], certificate: str) -> Figures:
    """Reads all objects, three times."""
    group = EventLoopGroup(1)
    bootstrap = ClientBootstrap(group, DefaultHostResolver(group))
    tls = None
    if certificate:
        options = TlsContextOptions()
        options.override_default_trust_store_from_path(None, certificate)
        tls = ClientTlsContext(options).new_connection_options()
        tls.set_server_name("127.0.0.1")
    return passes(lambda: fetch(bootstrap, tls, port, paths))


def fetch(bootstrap: Any, tls: Any, port: int, paths: list[str]) -> int:
    """All objects at once, a connection each; returns the bytes."""
    done: list[tuple[Any, Future[int], list[int]]] = []
    connecting = [
        HttpClientConnection.new("127.0.0.1", port, bootstrap, tls_connection_options=tls)
        for _ in paths
    ]
    for path, future in zip(paths, connecting, strict=True):
        connection, counted = future.result(), [0]
        request = HttpRequest("GET", path, HttpHeaders([("host", f"127.0.0.1:{port}")]))

        def body(http_stream: Any, chunk: bytes, counted: list[int] = counted, **_: Any) -> None:
            counted[0] += len(chunk)

        stream = connection.request(request, on_body=body)
        stream.activate()
        done.append((connection, stream.completion_future, counted))
    for connection, finished, _ in done:
        assert finished.result() == 200
        connection.close()
    return sum(counted[0] for _, _, counted in done)
