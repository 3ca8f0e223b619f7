"""awscrt's HTTP client over TLS, for `benchmarks.tls`: bodies dropped as they come. It imports
nothing of ours.

    python awscrt_client.py \
        '{"port": 1, "paths": ["/data/000.tfrecord"], "certificate": "cert.pem", "passes": 4}'

It runs in an environment of its own, because botocore behaves in another way where awscrt is
installed. Prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
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


def main() -> None:
    """Measures one pass to warm up, and then as many as are wanted."""
    task = json.loads(sys.argv[1])
    os.sched_setaffinity(0, set(task["cores"]))
    group = EventLoopGroup(task.get("threads", 1))
    bootstrap = ClientBootstrap(group, DefaultHostResolver(group))
    tls = None
    if task["certificate"]:
        options = TlsContextOptions()
        options.override_default_trust_store_from_path(None, task["certificate"])
        tls = ClientTlsContext(options).new_connection_options()
        tls.set_server_name("127.0.0.1")
    fetch(bootstrap, tls, task)
    began, cpu, size = time.perf_counter(), time.process_time(), 0
    for _ in range(task["passes"]):
        size += fetch(bootstrap, tls, task)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps({"mb_s": size / seconds / 1e6, "cpu_s_gb": used / size * 1e9}))


def fetch(bootstrap: Any, tls: Any, task: dict[str, Any]) -> int:
    """All objects at once, a connection each; returns the bytes."""
    done: list[tuple[Any, Future[int], list[int]]] = []
    connecting = [
        HttpClientConnection.new("127.0.0.1", task["port"], bootstrap, tls_connection_options=tls)
        for _ in task["paths"]
    ]
    for path, future in zip(task["paths"], connecting, strict=True):
        connection, counted = future.result(), [0]
        request = HttpRequest("GET", path, HttpHeaders([("host", f"127.0.0.1:{task['port']}")]))

        def body(http_stream: Any, chunk: bytes, counted: list[int] = counted, **_: Any) -> None:
            counted[0] += len(chunk)

        stream = connection.request(request, on_body=body)
        stream.activate()
        done.append((connection, stream.completion_future, counted))
    for connection, finished, _ in done:
        assert finished.result() == 200
        connection.close()
    return sum(counted[0] for _, _, counted in done)


if __name__ == "__main__":
    main()
