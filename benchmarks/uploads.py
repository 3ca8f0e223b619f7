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

import argparse
import asyncio
import http.client
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import botocore.session
import numpy as np
import s3fs

import streamrec
from benchmarks.machine import describe, median, save
from streamrec import Frames
from tests.servers.real import make_certificate, seaweedfs

SIZES = {1_000: 100, 110_000: 10}
"""Record length: how many different records there are."""

NBYTES = 128 << 20
PART = 8 << 20


def main() -> None:
    """Runs the comparison, or one side of it as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        side, url, options, size = arguments.child
        print(json.dumps(measured(SIDES[side], url, json.loads(options), int(size))))
        return
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for certificate in (None, make_certificate(Path(directory))):
            with seaweedfs(certificate=certificate) as store:
                options = json.dumps(dict(store.options))
                rows += [
                    row(size, certificate is not None, store.url, options, arguments.rounds)
                    for size in SIZES
                ]
    machine = describe("s3fs", "botocore", "aiohttp")
    save(
        "uploads",
        {"machine": machine, "load": os.getloadavg()[0], "rounds": arguments.rounds, "rows": rows},
    )


def row(size: int, tls: bool, url: str, options: str, rounds: int) -> dict[str, Any]:
    """All sides in turn: medians of MB/s and of CPU-s/GB."""
    sides = [
        side for side in SIDES if not tls or side != "unsigned"
    ]  # over TLS nobody signs bodies
    runs: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, taken in runs.items():
            taken.append(spawn(side, url, options, size))
    mb_s = {side: median(run[0] for run in taken) for side, taken in runs.items()}
    cpu = {side: median(run[1] for run in taken) for side, taken in runs.items()}
    told = {side: f"{mb_s[side]:.0f} MB/s, {cpu[side]:.2f} CPU-s/GB" for side in sides}
    print(size, "TLS" if tls else "plain HTTP", told, flush=True)
    return {"record": size, "tls": tls, "mb_s": mb_s, "cpu_s_gb": cpu}


def spawn(side: str, url: str, options: str, size: int) -> tuple[float, float]:
    """One side, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.uploads", "--child", side, url, options, str(size)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    mb_s, cpu = json.loads(done.stdout)
    return mb_s, cpu


def measured(
    side: Callable[..., Callable[[], None]], url: str, options: dict[str, Any], size: int
) -> Any:
    """MB/s and CPU-s/GB of the second upload."""
    os.sched_setaffinity(0, {0})
    rng = np.random.default_rng(0)
    some = [rng.bytes(size) for _ in range(SIZES[size])]
    records = some * (NBYTES // size // len(some))
    upload = side(f"{url}/uploaded", options, records)
    upload()
    began, cpu = time.perf_counter(), time.process_time()
    upload()
    nbytes = size * len(records)
    return nbytes / (time.perf_counter() - began) / 1e6, (time.process_time() - cpu) / nbytes * 1e9


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
    main()
