"""Streaming over TLS 1.3: streamrec beside s3fs, gcsfs, obstore, awscrt and a loop over plain
Python sockets.

    python -m benchmarks.tls [--rounds 3] [--only nginx,s3,gcs] [--plain]
        [--sides sockets,streamrec] [--client-cores 0]

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
CPU-s/GB are of the client's process; the ratios are of neighbours in time, and medians.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import ipaddress
import json
import os
import selectors
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.calm import calmest
from benchmarks.machine import describe, median, merge, save
from benchmarks.stream import PASSES, loaded, measured, read_bare, read_by_streamrec, spawn

MODULE = "benchmarks.tls"
SIDES = ("sockets", "bare", "obstore", "awscrt", "streamrec")
RECORD, BATCH = 110_000, 32


def main() -> None:
    """Runs the rows, or one side as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--only", default="nginx")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--dry", action="store_true", help="print the rows, and keep no data")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(**json.loads(given.child))), flush=True)
        os._exit(0)  # obstore's threads can abort the interpreter's own exit
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        certificate = None if given.plain else make_certificate(Path(directory))
        for server in given.only.split(","):
            size = given.megabytes << 20
            with loaded(server, given.shards, size, RECORD, certificate) as (urls, options):
                row = {
                    "server": server,
                    "tls": not given.plain,
                    **compared(urls, options, certificate, given),
                }
            rows.append(
                {
                    **row,
                    "shards": given.shards,
                    "shard_mib": given.megabytes,
                    "rounds": given.rounds,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    if not given.dry:
        save(
            "tls",
            {
                "machine": describe("s3fs", "gcsfs", "aiohttp", "obstore"),
                "rows": merge("tls", rows, "server", "tls"),
            },
        )


def compared(
    urls: Sequence[str],
    options: dict[str, Any],
    certificate: tuple[Path, Path] | None,
    given: argparse.Namespace,
) -> dict[str, Any]:
    """All sides in turn; medians of each, and of each round's ratios to the bare client and to the
    sockets.
    """
    sides = [side for side in given.sides.split(",") if side != "awscrt" or awscrt_python()]
    if "key" in options:  # a store that wants requests to be signed
        sides = [side for side in sides if side not in ("sockets", "awscrt")]
    file = str(certificate[0]) if certificate else ""

    def once() -> dict[str, dict[str, float]]:
        return {side: measure(side, urls, options, file) for side in sides}

    found, calm = calmest(once, given.rounds)
    row: dict[str, Any] = dict(calm)
    for side in sides:
        row[side] = {key: median(each[side][key] for each in found) for key in ("mb_s", "cpu_s_gb")}
        for other in {"sockets", "bare", "obstore"} & set(sides) - {side}:
            row[side][f"mb_s_of_{other}"] = median(
                each[side]["mb_s"] / each[other]["mb_s"] for each in found
            )
            row[side][f"cpu_of_{other}"] = median(
                each[side]["cpu_s_gb"] / each[other]["cpu_s_gb"] for each in found
            )
    return row


def measure(
    side: str, urls: Sequence[str], options: dict[str, Any], certificate: str
) -> dict[str, float]:
    """One side in a fresh process."""
    if side != "awscrt":
        environment = {"SSL_CERT_FILE": certificate} if certificate else {}
        return spawn(
            MODULE,
            environment,
            side=side,
            urls=list(urls),
            options=options,
            certificate=certificate,
        )
    address = urlsplit(options["endpoint_url"])
    task = {
        "port": address.port,
        "paths": [path_of(url) for url in urls],
        "certificate": certificate,
    }
    command = [awscrt_python(), str(Path(__file__).with_name("awscrt_client.py"))]
    command.append(json.dumps({**task, "passes": PASSES, "cores": [0]}))
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, float] = json.loads(done.stdout)
    return result


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
    bucket, _, key = rest.partition("/")
    return (
        f"/{rest}"
        if scheme == "s3"
        else f"/download/storage/v1/b/{bucket}/o/{key.replace('/', '%2F')}?alt=media"
    )


def child(side: str, urls: list[str], options: dict[str, Any], certificate: str) -> dict[str, Any]:
    """Reads all shards, one pass and then four more, and measures these."""
    if certificate and urls[0].startswith("s3"):
        options = {**options, "client_kwargs": {"region_name": "us-east-1", "verify": certificate}}
    importlib.import_module("s3fs" if urls[0].startswith("s3") else "gcsfs.core")
    trusted = Path(certificate).read_bytes() if certificate else b""
    ways = {
        "sockets": lambda: (read_sockets(urls, options["endpoint_url"], certificate), 0),
        "bare": lambda: asyncio.run(read_bare(urls, options, False)),
        "obstore": lambda: (asyncio.run(read_obstore(urls, options, trusted)), 0),
        "streamrec": lambda: read_by_streamrec(urls, options, BATCH, BATCH),
    }
    return measured(ways[side])


def read_sockets(urls: Sequence[str], endpoint: str, certificate: str) -> int:
    """A GET on each of as many connections as there are objects, by one thread; returns the bytes
    of all bodies.
    """
    address = urlsplit(endpoint)
    context = ssl.create_default_context(cafile=certificate) if certificate else None
    selector = selectors.DefaultSelector()
    room, size = memoryview(bytearray(1 << 20)), 0
    for url in urls:
        connection = socket.create_connection((address.hostname or "", address.port or 0))
        if context is not None:
            connection = context.wrap_socket(connection, server_hostname=address.hostname)
        connection.sendall(
            f"GET {path_of(url)} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(1)
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise SystemExit(f"the server refused {url}: {head!r}")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, [int(fields[b"content-length"])])
        size += int(fields[b"content-length"])
    while selector.get_map():
        for event, _ in selector.select():
            left, connection = event.data, event.fileobj
            try:
                while left[0]:
                    count = connection.recv_into(room)  # type: ignore[union-attr]
                    left[0] -= count
                    if context is None:
                        break
            except (ssl.SSLWantReadError, BlockingIOError):
                pass
            if not left[0]:
                selector.unregister(connection)
                connection.close()  # type: ignore[union-attr]
    return size


async def read_obstore(urls: Sequence[str], options: dict[str, Any], certificate: bytes) -> int:
    """Its own streams, all at once."""
    import obstore

    scheme, _, rest = urls[0].partition("://")
    bucket, endpoint = rest.partition("/")[0], options["endpoint_url"]
    client: dict[str, Any] = {"allow_http": not certificate, "timeout": timedelta(hours=1)}
    if certificate:
        client["root_certificate"] = certificate
    keys: dict[str, Any] = {"skip_signature": True}
    if "key" in options:
        keys = {"access_key_id": options["key"], "secret_access_key": options["secret"]}
    store: Any = (
        obstore.store.S3Store(
            bucket, endpoint=endpoint, region="us-east-1", client_options=client, **keys
        )
        if scheme == "s3"
        else obstore.store.GCSStore(bucket, base_url=endpoint, client_options=client, **keys)
    )

    async def read(url: str) -> int:
        got = await obstore.get_async(store, url.partition("://")[2].partition("/")[2])
        return sum([len(chunk) async for chunk in got.stream()])

    return sum(await asyncio.gather(*map(read, urls)))


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key: two files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "streamrec benchmarks")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(
        now + timedelta(days=2)
    )
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))])
    made = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    file, private = directory / "cert.pem", directory / "key.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, openssl, clear = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    private.write_bytes(key.private_bytes(pem, openssl, clear))
    return file, private


if __name__ == "__main__":
    sys.exit(main())
