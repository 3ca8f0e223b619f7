"""Deciphering by helpers: how much faster a process reads over TLS with threads that decipher beside the event loop's.

    python -m benchmarks.helpers [--rounds 5] [--shards 16] [--megabytes 16] [--calm 20] [--dry]

A server that enciphers while it sends takes as much of a processor as the client, and here there are two in all. So
this one enciphers all bodies before it sends the first byte of them, and then only copies. What is measured lies
between the first record and the last. Each side is a process of its own, on both processors:

- none, one, two: so many helpers, whatever the load.
- itself: as many as there are by default, when the load asks for them.

What other processes had of the processors meanwhile stands in each row (`others`): where that is much, the MB/s tell
nothing, and the processor seconds of each thread still do. `--calm` is how long each side waits for a moment in which
nobody else works.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import streamrec
from benchmarks.machine import describe, median, save
from benchmarks.stream import fill, spawn
from benchmarks.tls import make_certificate
from streamrec.storage.backends.http.helpers import HELPERS, Load
from streamrec.storage.backends.http.take_over import BUFFERED_BODIES

MODULE = "benchmarks.helpers"
SIDES = {"none": 0, "one": 1, "two": 2, "itself": None}
RECORD, BATCH, PASSES = 110_000, 32, 3
T = TypeVar("T")


def main() -> None:
    """Runs the rows, the server, or one side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--calm", type=float, default=20.0)
    parser.add_argument("--dry", action="store_true", help="print the rows, and keep no data")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(Path(given.serve), given.shards)
    elif given.child:
        print(json.dumps(child(**json.loads(given.child))))
    else:
        rows = compared(given)
        if not given.dry:
            save("helpers", {"machine": describe("s3fs", "aiohttp"), "rows": rows})


def compared(given: argparse.Namespace) -> list[dict[str, Any]]:
    """All sides in turn."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        certificate, _ = make_certificate(root)
        asyncio.run(fill(str(root / "data"), None, given.shards, given.megabytes << 20, RECORD))
        command = [sys.executable, "-m", MODULE, "--serve", name, "--shards", str(given.shards)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            task = {"port": port, "certificate": str(certificate), "shards": given.shards, "calm": given.calm}
            for _ in range(given.rounds):
                for side, helpers in SIDES.items():
                    passes = spawn(MODULE, {"SSL_CERT_FILE": str(certificate)}, helpers=helpers, **task)["passes"]
                    found[side] += passes
                    print(side, passes, flush=True)
            server.terminate()
    rows = []
    for side, passes in found.items():
        calmest = sorted(passes, key=lambda one: one["others"])[: max(3, len(passes) // 3)]
        rows.append({"side": side, **{key: median(one[key] for one in calmest) for key in calmest[0]}})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def child(port: int, certificate: str, shards: int, calm: float, helpers: int | None) -> dict[str, Any]:
    """Reads all shards once, and then again a few times."""
    if helpers is not None:
        HELPERS.most = helpers
        Load.is_busy = lambda self: True  # type: ignore[method-assign]
    dataset = streamrec.TFRecordDataset(
        [f"s3://data/{index:03d}.tfrecord" for index in range(shards)],
        num_parallel_reads=shards,
        block_length=BATCH,
        storage_options={
            "endpoint_url": f"https://127.0.0.1:{port}",
            "anon": True,
            "client_kwargs": {"region_name": "us-east-1", "verify": certificate},
        },
        retry=streamrec.RetryPolicy(hedge_share=0, hedge_allowance=0),  # the server answers when it is ready
    )
    batches = dataset.with_options(memory_budget=256 << 20).batch(BATCH)
    one_pass(batches)
    return {"passes": [at_rest(lambda: one_pass(batches), calm) for _ in range(PASSES)]}


def one_pass(batches: streamrec.Dataset[Any]) -> dict[str, float]:
    """From the first record to the last."""
    size, helped, since = 0, 0, None
    for frames in batches:
        if since is None:
            helped = BUFFERED_BODIES.helped_bytes
            since = time.perf_counter(), thread_seconds(), busy_seconds(), time.process_time()
        else:
            size += frames.nbytes + 16 * len(frames)
    assert since is not None
    began, threads, busy, own = since
    seconds, gigabytes = time.perf_counter() - began, size / 1e9
    spent = {name: used - threads.get(name, 0) for name, used in thread_seconds().items()}
    helping = sum(used for name, used in spent.items() if name.startswith("streamrec-help"))
    return {
        "mb_s": size / seconds / 1e6,
        "others": max(0.0, (busy_seconds() - busy - time.process_time() + own) / seconds),
        "cpu_s_gb": (time.process_time() - own) / gigabytes,
        "loop_s_gb": spent["streamrec-loop"] / gigabytes,
        "helpers_s_gb": helping / gigabytes,
        "helped": (BUFFERED_BODIES.helped_bytes - helped) / size,
    }


def at_rest(work: Callable[[], T], patience: float) -> T:
    """Does it in a moment in which nobody else works, or when the patience is over."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        before = busy_seconds()
        time.sleep(0.2)
        if busy_seconds() - before < 0.05:
            break
    return work()


def busy_seconds() -> float:
    """What all processes of the machine had of its processors, in steps of 10 ms."""
    counters = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return (sum(counters) - counters[3] - counters[4]) / 100


def thread_seconds() -> dict[str, float]:
    """Processor seconds of this process's threads, by their names."""
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        ids = {str(thread.native_id): thread.name for thread in threading.enumerate()}
        name = ids.get(task.name, "other")
        found[name] = found.get(name, 0) + int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def serve(root: Path, shards: int) -> None:
    """Serves files by HTTP over TLS: each set of `shards` large answers is enciphered first, and then sent at once."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(root / "cert.pem", root / "key.pem")
    listener, together = socket.create_server(("127.0.0.1", 0), backlog=128), threading.Barrier(shards)
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection, context, root, together), daemon=True).start()


def answer(connection: socket.socket, context: ssl.SSLContext, root: Path, together: threading.Barrier) -> None:
    """One connection, until it is closed."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    enciphering = context.wrap_bio(incoming, outgoing, server_side=True)

    def done(step: Callable[[], T]) -> T:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                received = connection.recv(1 << 16)
                if not received:
                    raise ConnectionError from None
                incoming.write(received)

    with connection:
        try:
            done(enciphering.do_handshake)
            while True:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += done(lambda: enciphering.read(1 << 16))
                body = memoryview((root / head.split()[1].decode().lstrip("/")).read_bytes())
                size, asked = len(body), re.search(rb"range: bytes=(\d+)-(\d*)", head, re.IGNORECASE)
                start = int(asked[1]) if asked else 0
                body = body[start : int(asked[2]) + 1 if asked and asked[2] else size]
                lines = ["HTTP/1.1 206 Partial Content", f"Content-Length: {len(body)}", 'ETag: "1"']
                lines += [f"Content-Range: bytes {start}-{start + len(body) - 1}/{size}", "", ""]
                enciphering.write("\r\n".join(lines).encode())
                pieces = [outgoing.read()]
                for begin in range(0, len(body), 1 << 20):
                    enciphering.write(body[begin : begin + (1 << 20)])
                    pieces.append(outgoing.read())
                if len(body) > 1 << 20:
                    together.wait()
                for piece in pieces:
                    connection.sendall(piece)
        except OSError:  # the client is gone
            return


if __name__ == "__main__":
    sys.exit(main())
