"""Streaming over TLS 1.3: streamrec beside s3fs, gcsfs, obstore, awscrt and a loop over plain
Python sockets.

    python -m benchmarks.tls [--rounds 3] [--only nginx,s3,gcs] [--plain]
        [--sides sockets,streamrec]

The certificate is made when it runs, and every client verifies it. Each side reads the same
objects, in turn, in a process of its own that is pinned to one core; the server has the other.
Sides:

- sockets: the limit: one thread, a selector, `SSLSocket.recv_into`; bytes dropped.
- bare: s3fs' or gcsfs' own streamed GETs, bytes dropped.
- obstore: its own stream of each object (`min_chunk_size` as it is by default), bytes dropped.
- awscrt: its HTTP client, one event loop thread, bytes dropped. It needs `.venv-crt`
  (`make .venv-crt/.done`), or another interpreter that has awscrt in STREAMREC_AWSCRT; without one
  the row is left out, and the data says so. It and the sockets sign no requests, so SeaweedFS has
  no such rows.
- streamrec: framed, checked, interleaved, given to a `for` loop in turns of a batch.

All but the connections' first pass is measured. `--plain` does the same over plain HTTP. MB/s and
CPU-s/GB are of the client's process.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import ssl
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import readers, stores
from benchmarks.harness.meter import Figures, passes
from benchmarks.harness.process import in_own_process, sides_of
from benchmarks.harness.program import Names, run
from benchmarks.harness.results import save, with_saved
from benchmarks.harness.rounds import Side, in_turn
from tests.servers.real import make_certificate

SIDES = ("sockets", "bare", "obstore", "awscrt", "streamrec")
PEERS = ("sockets", "bare", "obstore")
RECORD, BATCH = 110_000, 32


def main(
    *,
    rounds: int = 3,
    shards: int = 16,
    megabytes: int = 32,
    only: Names = ("nginx",),
    sides: Names = SIDES,
    plain: bool = False,
) -> None:
    """A row for each server."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        certificate = None if plain else make_certificate(Path(directory))
        file = str(certificate[0]) if certificate else ""
        for server in only:
            where = stores.real(
                server, shards=shards, size=megabytes << 20, record=RECORD, certificate=certificate
            )
            with where as (urls, options):
                found = compared(sides_for(sides, urls, options, file), rounds)
            row = {"server": server, "tls": not plain, **found}
            rows.append({**row, "shards": shards, "shard_mib": megabytes, "rounds": rounds})
            print(rows[-1], flush=True)
    packages = ["s3fs", "gcsfs", "aiohttp", "obstore"]
    save("tls", packages, rows=with_saved("tls", rows, "server", "tls"))


def sides_for(
    names: Sequence[str], urls: Sequence[str], options: dict[str, Any], certificate: str
) -> dict[str, Side]:
    """The sides that can read from this store here."""
    signed = "key" in options
    environment = {"SSL_CERT_FILE": certificate} if certificate else {}
    task = {"urls": list(urls), "options": options, "certificate": certificate}
    made: dict[str, Side] = sides_of(measured, names, environment=environment, **task)
    if "awscrt" in made:
        address = urlsplit(options["endpoint_url"])
        made["awscrt"] = partial(
            in_own_process,
            "benchmarks.awscrt_client:measured",
            python=awscrt_python(),
            port=address.port,
            paths=[path_of(url) for url in urls],
            certificate=certificate,
        )
    left_out = {"sockets", "awscrt"} if signed else set() if awscrt_python() else {"awscrt"}
    return {name: side for name, side in made.items() if name not in left_out}


def compared(sides: dict[str, Side], rounds: int) -> dict[str, Any]:
    """All sides in turn, and their ratios to three of them."""
    taken = in_turn(sides, rounds)
    row: dict[str, Any] = dict(taken.calm)
    for side in sides:
        row[side] = taken.medians(side, "mb_s", "cpu_s_gb")
        for peer in PEERS:
            if peer in sides and peer != side:
                row[side][f"mb_s_of_{peer}"] = taken.ratio("mb_s", side, peer)
                row[side][f"cpu_of_{peer}"] = taken.ratio("cpu_s_gb", side, peer)
    return row


def awscrt_python() -> str:
    """An interpreter that has awscrt, or nothing."""
    program = os.environ.get("STREAMREC_AWSCRT", ".venv-crt/bin/python")
    return program if Path(program).exists() else ""


def path_of(url: str) -> str:
    """Where an object lies below its endpoint.

    >>> path_of("s3://data/000.tfrecord"), path_of("gs://data/a/b")
    ('/data/000.tfrecord', '/download/storage/v1/b/data/o/a%2Fb?alt=media')
    """
    scheme, _, rest = url.partition("://")
    if scheme == "s3":
        return f"/{rest}"
    bucket, _, key = rest.partition("/")
    return f"/download/storage/v1/b/{bucket}/o/{key.replace('/', '%2F')}?alt=media"


def measured(side: str, urls: list[str], options: dict[str, Any], certificate: str) -> Figures:
    """One side reads all shards, three times."""
    if certificate and urls[0].startswith("s3"):
        verified = {"region_name": stores.REGION, "verify": certificate}
        options = {**options, "client_kwargs": verified}
    readers.load_client(urls[0])
    trusted = Path(certificate).read_bytes() if certificate else b""
    read = {
        "sockets": lambda: read_sockets(urls, options["endpoint_url"], certificate),
        "bare": lambda: readers.by_bare_client(urls, options)[0],
        "obstore": lambda: asyncio.run(read_obstore(urls, options, trusted)),
        "streamrec": lambda: readers.by_streamrec(urls, options, batch=BATCH, block=BATCH)[0],
    }
    return passes(read[side])


def read_sockets(urls: Sequence[str], endpoint: str, certificate: str) -> int:
    """A GET on each of as many connections as there are objects, by one thread; returns the bytes
    of all bodies.
    """
    context = ssl.create_default_context(cafile=certificate) if certificate else None
    selector = selectors.DefaultSelector()
    room, size = memoryview(bytearray(1 << 20)), 0
    for url in urls:
        connection, length = asked(url, endpoint, context)
        selector.register(connection, selectors.EVENT_READ, [length])
        size += length
    while selector.get_map():
        for event, _ in selector.select():
            left, ready = event.data, event.fileobj
            try:
                while left[0]:
                    left[0] -= ready.recv_into(room)  # type: ignore[union-attr]
                    # a TLS socket may hold bytes that the selector does not know of
                    if context is None:
                        break
            except (ssl.SSLWantReadError, BlockingIOError):
                pass
            if not left[0]:
                selector.unregister(ready)
                ready.close()  # type: ignore[union-attr]
    return size


def asked(url: str, endpoint: str, context: ssl.SSLContext | None) -> tuple[socket.socket, int]:
    """A connection on which the body of an object comes next, and the length of the body."""
    address = urlsplit(endpoint)
    connection = socket.create_connection((address.hostname or "", address.port or 0))
    if context is not None:
        connection = context.wrap_socket(connection, server_hostname=address.hostname)
    request = f"GET {path_of(url)} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n"
    connection.sendall(request.encode())
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(1)
    status, *lines = head.split(b"\r\n")[:-2]
    if b" 200 " not in status:
        raise SystemExit(f"the server refused {url}: {head!r}")
    fields = dict(line.lower().split(b": ", 1) for line in lines)
    connection.setblocking(False)
    return connection, int(fields[b"content-length"])


async def read_obstore(urls: Sequence[str], options: dict[str, Any], certificate: bytes) -> int:
    """Its own streams, all at once."""
    import obstore

    scheme, _, rest = urls[0].partition("://")
    bucket, endpoint = rest.partition("/")[0], options["endpoint_url"]
    client: Any = {"allow_http": not certificate, "timeout": timedelta(hours=1)}
    if certificate:
        client["root_certificate"] = certificate
    keys: dict[str, Any] = {"skip_signature": True}
    if "key" in options:
        keys = {"access_key_id": options["key"], "secret_access_key": options["secret"]}
    store: Any
    if scheme == "s3":
        keys |= {"endpoint": endpoint, "region": stores.REGION}
        store = obstore.store.S3Store(bucket, client_options=client, **keys)
    else:
        store = obstore.store.GCSStore(bucket, base_url=endpoint, client_options=client, **keys)

    async def read(url: str) -> int:
        got = await obstore.get_async(store, url.partition("://")[2].partition("/")[2])
        return sum([len(chunk) async for chunk in got.stream()])

    return sum(await asyncio.gather(*map(read, urls)))


if __name__ == "__main__":
    run(main)
