"""Uploading shards to a SeaweedFS on this machine: processor time of the client, beside a bare PUT
of the same bytes.

    python -m benchmarks.uploads [--rounds 3]

Over plain HTTP and over TLS. Sides take turns, each in a process of its own on one core; medians of
CPU-s/GB count, because the store takes about 100 MB/s from anybody. Every side has uploaded once
before with the same client. "http.client" sends the framed bytes as objects of 8 MiB over one
connection, by URLs that were signed before, without the bodies. "botocore" does so by `put_object`,
with the checksum that it adds by itself, and "s3fs" by the file that its `open` gives. streamrec
frames the records, too: "records" is `TFRecordWriter.write` for each, "frames" is
`ShardWriter.write_batch`, and "unsigned" is that without botocore's SHA-256 of bodies, which it
takes over plain HTTP.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import botocore.session
import numpy as np
import s3fs

import streamrec
from benchmarks import stores
from benchmarks.harness.meter import Figures, Meter, pin
from benchmarks.harness.process import sides_of
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn
from streamrec import Frames
from tests.servers.real import make_certificate, seaweedfs

SIZES = {1_000: 100, 110_000: 10}
"""Record length: how many different records there are."""

NBYTES = 128 << 20
PART = 8 << 20


def main(*, rounds: int = 3) -> None:
    """Over plain HTTP and over TLS, a row for each length of records."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for certificate in (None, make_certificate(Path(directory))):
            with ExitStack() as stack:
                with stores.last_core():
                    store = stack.enter_context(seaweedfs(certificate=certificate))
                task = {"url": store.url, "options": dict(store.options)}
                for size in SIZES:
                    rows.append(compared({**task, "size": size}, certificate is not None, rounds))
                    print(rows[-1], flush=True)
    save("uploads", ["s3fs", "botocore", "aiohttp"], rounds=rounds, rows=rows)


def compared(task: dict[str, Any], tls: bool, rounds: int) -> dict[str, Any]:
    """All sides in turn."""
    # over TLS botocore does not sign bodies, and so "unsigned" would be "frames"
    names = [side for side in SIDES if not tls or side != "unsigned"]
    taken = in_turn(sides_of(measured, names, **task), rounds)
    figures = {figure: taken.by_side(figure) for figure in ("mb_s", "cpu_s_gb")}
    return {"record": task["size"], "tls": tls, **figures, **taken.calm}


def measured(side: str, url: str, options: dict[str, Any], size: int) -> Figures:
    """The second upload of one side."""
    pin()
    random = np.random.default_rng(0)
    some = [random.bytes(size) for _ in range(SIZES[size])]
    records = some * (NBYTES // size // len(some))
    upload = SIDES[side](f"{url}/uploaded", options, records)
    upload()
    with Meter() as meter:
        upload()
    return meter.rates(size * len(records))


def parts_of(records: list[bytes]) -> list[bytes]:
    """The framed bytes, in the parts that are sent."""
    framed = streamrec.encode_records(records)
    return [framed[start : start + PART] for start in range(0, len(framed), PART)]


def client_of(options: dict[str, Any]) -> Any:
    """A client of botocore's."""
    session = botocore.session.get_session()
    keys = {"aws_access_key_id": options["key"], "aws_secret_access_key": options["secret"]}
    return session.create_client(
        "s3", endpoint_url=options["endpoint_url"], **options["client_kwargs"], **keys
    )


def places(url: str, parts: list[bytes]) -> list[dict[str, str]]:
    """Bucket and key of each part, as an object of its own."""
    bucket = urlsplit(url).netloc
    return [{"Bucket": bucket, "Key": f"part-{index}"} for index in range(len(parts))]


def connected(options: dict[str, Any]) -> http.client.HTTPConnection:
    """A connection to the store."""
    place = urlsplit(options["endpoint_url"])
    if place.scheme == "http":
        return http.client.HTTPConnection(place.netloc)
    context = ssl.create_default_context(cafile=options["client_kwargs"]["verify"])
    return http.client.HTTPSConnection(place.netloc, context=context)


def by_http_client(url: str, options: dict[str, Any], records: list[bytes]) -> Callable[[], None]:
    """PUTs without a client library."""
    parts, client = parts_of(records), client_of(options)
    urls = [client.generate_presigned_url("put_object", place) for place in places(url, parts)]

    def upload() -> None:
        connection = connected(options)
        for part, signed in zip(parts, urls, strict=True):
            connection.request("PUT", signed.removeprefix(options["endpoint_url"]), part)
            answer = connection.getresponse()
            if answer.status != 200:
                raise SystemExit(f"{answer.status}: {answer.read()!r}")
            answer.read()
        connection.close()

    return upload


def by_botocore(url: str, options: dict[str, Any], records: list[bytes]) -> Callable[[], None]:
    """PUTs by the client library."""
    parts, client = parts_of(records), client_of(options)

    def upload() -> None:
        for part, place in zip(parts, places(url, parts), strict=True):
            client.put_object(Body=part, **place)

    return upload


def by_s3fs(url: str, options: dict[str, Any], records: list[bytes]) -> Callable[[], None]:
    """The file of s3fs."""
    parts, filesystem = parts_of(records), s3fs.S3FileSystem(**options)

    def upload() -> None:
        with filesystem.open(url, "wb", block_size=PART) as file:
            for part in parts:
                file.write(part)

    return upload


def by_records(url: str, options: dict[str, Any], records: list[bytes]) -> Callable[[], None]:
    """A call for each record."""

    def upload() -> None:
        with streamrec.TFRecordWriter(url, storage_options=options) as writer:
            for record in records:
                writer.write(record)

    return upload


def by_frames(url: str, options: dict[str, Any], records: list[bytes]) -> Callable[[], None]:
    """Batches of about a megabyte."""
    batch = Frames.of(records[: max(1, (1 << 20) // len(records[0]))])

    async def write() -> None:
        async with streamrec.ShardWriter(url, storage_options=options) as writer:
            for _ in range(len(records) // len(batch)):
                await writer.write_batch(batch)

    loop = asyncio.new_event_loop()
    return lambda: loop.run_until_complete(write())


def by_frames_unsigned(
    url: str, options: dict[str, Any], records: list[bytes]
) -> Callable[[], None]:
    """The same, without botocore's SHA-256 of bodies."""
    return by_frames(
        url, {**options, "config_kwargs": {"s3": {"payload_signing_enabled": False}}}, records
    )


SIDES: dict[str, Callable[..., Callable[[], None]]] = {
    "http.client": by_http_client,
    "botocore": by_botocore,
    "s3fs": by_s3fs,
    "records": by_records,
    "frames": by_frames,
    "unsigned": by_frames_unsigned,
}


if __name__ == "__main__":
    run(main)
