"""`streamrec doctor`: whether a store can be reached, and does what streamrec needs.

A check returns what it found, or raises what is wrong. All that `--write` writes is below the URL that was named, and
is removed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import anyio
import click
from fsspec.core import url_to_fs

from streamrec import NotFoundError, StreamrecError
from streamrec.cli import options
from streamrec.cli.endpoint import Endpoint, clock_skew, connect, endpoint_of, handshake, resolve
from streamrec.cli.measuring import measure
from streamrec.cli.output import format_bytes, plural, print_json, print_line
from streamrec.cli.program import STORE_FAILED
from streamrec.cli.reading import run
from streamrec.cli.sources import Found, directory_of, find, storages_for
from streamrec.cli.writing import remove_all, temporary_objects
from streamrec.display import display_name, mask_values
from streamrec.errors import AlreadyExistsError, ObjectChangedError, UnsupportedOperationError
from streamrec.storage import Storages, is_temporary, secured_of

MARKS: Final = {True: "ok  ", False: "FAIL", None: "-   "}

SKEW_SECONDS: Final = 300.0
LOOKS: Final = 10
RANGE_BYTES: Final = 1 << 22
SPEED_SECONDS: Final = 1.0

OLD: Final = timedelta(days=1)
"""A younger upload may be a writer's that is at work."""

NO_CHECKSUM: Final = "none: damage in the store shows only in the CRC32C of each record"

WRITTEN_BYTES: Final = 1_000_000
PARTS_BYTES: Final = 9_000_000
"""More than one part of an upload, which has 8 MiB."""


@click.command(
    "doctor",
    epilog=options.examples("streamrec doctor s3://bucket/train/", "streamrec doctor --write s3://bucket/scratch/"),
)
@click.argument("url")
@click.option(
    "--write/--no-write",
    default=None,
    help="Write objects of 1 and 9 MB below URL and remove them again, or not; without either, a terminal asks.",
)
@options.as_json
@options.storage_options
def doctor_command(url: str, write: bool | None, as_json: bool, storage_options: Mapping[str, Any]) -> int:
    """Looks at a store, step by step: its name, connection, TLS, clock, listing, reading, versions, checksums, speed.

    What fails says what to do about it, and the exit code is 3. URL is a directory, a pattern or an object.
    """
    if write is None:
        write = (
            sys.stdin.isatty()
            and not as_json
            and click.confirm(f"Write and remove test objects (10 MB) below {display_name(url)}?")
        )
    rows = run(run_checks(url, write, as_json, storage_options))
    if as_json:
        print_json({"ok": all(row.ok is not False for row in rows), "checks": [asdict(row) for row in rows]})
    return STORE_FAILED if any(row.ok is False for row in rows) else 0


async def run_checks(url: str, write: bool, quiet: bool, storage_options: Mapping[str, Any]) -> list[CheckResult]:
    """Makes all checks, and prints each when it is done."""
    rows = []
    async with aclosing(examine(url, write, storage_options)) as examined:
        async for row in examined:
            rows.append(row)
            if not quiet:
                print_line(f"{MARKS[row.ok]}  {row.name:<9}  {row.seconds:6.3f} s  {row.found}")
                sys.stdout.flush()
    return rows


class CheckError(Exception):
    """Something is not as it should be; the message says what to do."""


class NotCheckedError(Exception):
    """This store has no such thing; the message says why, and what follows from it."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: Its name.
        ok: Whether all is as it should be; None where the check was not made.
        seconds: How long it took.
        found: What it found, or what is wrong and what to do.
    """

    name: str
    ok: bool | None
    seconds: float
    found: str


@dataclass(frozen=True, slots=True)
class Target:
    """The store to check.

    Attributes:
        url: The URL that was named.
        options: Storage options.
        storages: The stores that these lead to.
    """

    url: str
    options: Mapping[str, Any]
    storages: Storages

    @property
    def folder(self) -> str:
        """The directory that is named, or that of the object or pattern; ends in a slash."""
        return directory_of(self.url) or self.url[: self.url.rfind("/") + 1]


async def run_check(name: str, check: Callable[[], Awaitable[str]]) -> CheckResult:
    """Makes a check, and measures its time."""
    began, ok = time.perf_counter(), None
    try:
        found, ok = await check(), True
    except NotCheckedError as reason:
        found = str(reason)
    except (StreamrecError, OSError, HTTPException, CheckError) as error:
        found, ok = str(error) or type(error).__name__, False
    return CheckResult(name, ok, time.perf_counter() - began, found)


def scheme_of(url: str) -> str:
    """The kind of store that a URL is in: "s3", "gs", "http", ...; "" for a local path.

    Examples:
        >>> scheme_of("s3a://bucket/a"), scheme_of("gcs://bucket/a"), scheme_of("https://host/a"), scheme_of("/a")
        ('s3', 'gs', 'http', '')
    """
    scheme = urlsplit(url).scheme
    return {"s3a": "s3", "gcs": "gs", "https": "http"}.get(scheme, scheme)


async def ask_client(path: str, options: Mapping[str, Any], ask: Callable[[Any, str], Any]) -> Any:
    """Asks the store's fsspec client for what `Storage` has no verb for.

    Raises:
        CheckError: The store refuses it.
        NotCheckedError: There is no such client, or not with these options.
    """
    plain = {key: value for key, value in options.items() if key != "backend"}

    def call() -> Any:
        try:
            client, _ = url_to_fs(f"{path.partition('://')[0]}://", **plain)  # a key may look like a chain or a version
        except (ImportError, TypeError, ValueError) as error:
            said = mask_values(str(error), plain)
            raise NotCheckedError(f"not looked at: fsspec has no client for this ({said})") from error
        try:
            return ask(client, path.partition("://")[2])
        except Exception as error:  # clients raise errors of many packages
            raise CheckError(mask_values(str(error), plain) or type(error).__name__) from error

    return await anyio.to_thread.run_sync(call)


async def examine(url: str, write: bool, storage_options: Mapping[str, Any]) -> AsyncGenerator[CheckResult, None]:
    """Makes all checks that can be made.

    Args:
        url: An object, a pattern or a directory.
        write: Whether to write objects below it, and remove them again.
        storage_options: Of its store.
    """
    endpoint = endpoint_of(url, storage_options)
    if endpoint is not None:
        for name, look in ENDPOINT.items():
            row = await run_check(name, lambda look=look: anyio.to_thread.run_sync(look, endpoint))  # type: ignore[misc]
            yield row
            if not row.ok and name != "clock":
                return
    async with storages_for(storage_options) as storages:
        target, found = Target(url, storage_options, storages), list[Found]()
        yield await run_check("list", lambda: check_list(target, found))
        objects = [item for item in found if item.size]
        if objects:
            largest = max(objects, key=lambda item: item.size or 0)
            for name, check in READING.items():
                yield await run_check(name, lambda check=check: check(target, largest))  # type: ignore[misc]
        else:
            yield CheckResult(
                "get", None, 0.0, "nothing to read: name a directory that has objects, to look at reading too"
            )
        yield await run_check("leftovers", lambda: check_leftovers(target))
        yield await run_check("replaced", lambda: check_replaced(target))
        if write:
            async with aclosing(examine_writing(target)) as rows:
                async for row in rows:
                    yield row


def check_resolve(endpoint: Endpoint) -> str:
    try:
        return f"{endpoint.host} is {', '.join(resolve(endpoint))}"
    except OSError as error:
        raise CheckError(f"{endpoint.host} has no address ({error}): check the endpoint's name, and DNS") from error


def check_connect(endpoint: Endpoint) -> str:
    try:
        connect(endpoint)
    except OSError as error:
        raise CheckError(
            f"no connection to port {endpoint.port} ({error}): is it up, is a firewall between?"
        ) from error
    return f"port {endpoint.port}"


def check_tls(endpoint: Endpoint) -> str:
    if not endpoint.secure:
        return "not encrypted: all right on this machine or in a network of your own"
    try:
        return handshake(endpoint)
    except OSError as error:
        raise CheckError(f"{error}: check the certificate, or name the CA's file in SSL_CERT_FILE") from error


def check_clock(endpoint: Endpoint) -> str:
    skew = clock_skew(endpoint)
    if skew is None:
        return "the server tells no time"
    ahead = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's clock"
    if abs(skew) > SKEW_SECONDS:
        raise CheckError(f"{ahead}: set this machine's clock; stores refuse requests that are 15 minutes off")
    return "as the server's, to a few seconds" if abs(skew) < 3 else ahead


async def check_list(target: Target, found: list[Found]) -> str:
    directory = directory_of(target.url)
    if directory is None:
        found += await find(target.storages, [target.url])
    else:
        storage = await target.storages.at(directory)
        found += [Found(info.path, info.size) async for info in storage.list(directory)]
    size = sum(item.size or 0 for item in found)
    return f"{plural(len(found), 'object')}, {format_bytes(size)}"


async def check_get(target: Target, item: Found) -> str:
    storage, size = await target.storages.at(item.path), min(item.size or 0, 1 << 16)
    got = await storage.read_range(item.path, 0, size)
    if len(got) != size:
        raise CheckError(f"{len(got):,} bytes came where the listing tells of {size:,}: was the object replaced?")
    return f"{plural(size, 'byte')} of {item.path}"


async def check_latency(target: Target, item: Found) -> str:
    storage, took = await target.storages.at(item.path), []
    for _ in range(LOOKS):
        began = time.perf_counter()
        await storage.read_range(item.path, 0, 1)
        took.append(time.perf_counter() - began)
    return f"a byte comes in {statistics.median(took) * 1e3:.1f} ms, the slowest of {LOOKS} in {max(took) * 1e3:.1f} ms"


async def check_range(target: Target, item: Found) -> str:
    storage, size = await target.storages.at(item.path), min(item.size or 0, 1 << 16)
    whole = await storage.read_range(item.path, 0, size)
    half = await storage.read_range(item.path, size // 2, size)
    if whole[size // 2 :] != half or len(whole) != size:
        raise CheckError("a range is not the same as the same bytes of the whole: a proxy between may not know ranges")
    return f"bytes {size // 2:,} to {size:,} are the same alone and as a part"


async def check_version(target: Target, item: Found) -> str:
    storage = await target.storages.at(item.path)
    version = (await storage.stat(item.path)).version
    if version is None:
        raise CheckError("the store tells no version: an object that is replaced while it is read is not noticed")
    await storage.read_range(item.path, 0, 1, version)
    try:
        other = str(int(version) + 1) if version.isdigit() else '"no-such-version"'
        await storage.read_range(item.path, 0, 1, other)
    except ObjectChangedError:
        return f"version {version}; another one is refused"
    raise CheckError("another version was asked for, and the store gave this one: a change under way is not noticed")


async def check_speed(target: Target, item: Found) -> str:
    rates = []
    for connections in (1, 16):
        done = await measure([item], connections, RANGE_BYTES, SPEED_SECONDS, target.options)
        rates.append(f"{done.rate:,.0f} MB/s with {plural(connections, 'connection')}")
    return ", ".join(rates)


async def unfinished_uploads(prefix: str, options: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The first thousand multipart uploads under way to keys of S3 that begin so.

    Raises:
        CheckError: The store does not list them.
    """

    def ask(client: Any, inner: str) -> Any:
        bucket, _, key = inner.partition("/")
        return client.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)

    try:
        page: Mapping[str, Any] = await ask_client(prefix, options, ask)
    except CheckError as error:
        if "NoSuchUpload" in str(error):
            return ()  # `rclone serve s3` says so of a bucket in which no upload was begun
        raise CheckError(
            f"{error}: allow ListBucketMultipartUploads, or set a lifecycle rule that ends them"
        ) from error
    bucket_key = prefix.partition("://")[2].partition("/")[2]
    return [upload for upload in page.get("Uploads") or () if upload["Key"].startswith(bucket_key)]


async def check_leftovers(target: Target) -> str:
    """Looks for uploads that killed writers left: the store keeps and bills their parts."""
    if scheme_of(target.url) == "gs":
        raise NotCheckedError("Google Cloud Storage lists no unfinished uploads, and drops them after a week")
    if scheme_of(target.url) != "s3":
        raise NotCheckedError("only S3 lists unfinished uploads")
    found = await unfinished_uploads(target.folder, target.options)
    limit = datetime.now(UTC) - OLD
    old = [upload for upload in found if upload["Initiated"] < limit]
    if old:
        raise CheckError(
            f"{plural(len(old), 'unfinished upload')} older than a day, of {old[0]['Key']} ...: the store bills their "
            "parts; set a lifecycle rule AbortIncompleteMultipartUpload"
        )
    return f"{plural(len(found), 'upload')} under way, none older than a day" if found else "no unfinished upload"


async def check_replaced(target: Target) -> str:
    """Looks for what objects were before a run that was to replace them was killed."""
    storage = await target.storages.at(target.folder)
    try:
        hidden = [info.path async for info in storage.list(target.folder, hidden=True) if is_temporary(info.path)]
    except UnsupportedOperationError as error:
        raise NotCheckedError(str(error)) from error
    old = [(path, name) for path in hidden if (name := secured_of(path)) is not None]
    if old:
        path, name = old[0]
        raise CheckError(
            f"{path} is what {name} was before a run that replaced it ended half way, or is at work; there are "
            f"{len(old):,} such objects: copy each over its name to have the old data back, or remove them all"
        )
    others = f"; {plural(len(hidden), 'hidden object')} of writers, at work or killed" if hidden else ""
    return f"no object was replaced half way{others}"


async def check_checksum(target: Target, item: Found) -> str:
    """Which checksums the store gives of an object."""
    scheme = scheme_of(item.path)
    if scheme not in ("s3", "gs"):
        raise NotCheckedError("this kind of store gives none; each record has its own CRC32C")

    def ask(client: Any, inner: str) -> Any:
        bucket, _, key = inner.partition("/")
        if scheme == "gs":
            return client.call("GET", "b/{}/o/{}", bucket, key, json_out=True)
        return client.call_s3("head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")

    head: Mapping[str, Any] = await ask_client(item.path, target.options, ask)
    return ", ".join(checksums_of(head)) or NO_CHECKSUM


def checksums_of(head: Mapping[str, Any]) -> list[str]:
    """The checksums in what S3 or Google Cloud Storage tell of an object.

    Examples:
        >>> checksums_of({"ETag": '"d41d8cd98f00b204e9800998ecf8427e"', "ChecksumCRC32C": "AAAAAA==", "Size": 0})
        ['CRC32C AAAAAA==', 'MD5 d41d8cd98f00b204e9800998ecf8427e']
        >>> checksums_of({"crc32c": "AAAAAA==", "etag": "CAE="}), checksums_of({"ETag": '"d41d-3"'})
        (['CRC32C AAAAAA=='], [])
    """
    found = [
        f"{key.removeprefix('Checksum')} {value}"
        for key, value in head.items()
        if key.startswith("Checksum") and key != "ChecksumType"
    ]
    names = {"crc32c": "CRC32C", "md5Hash": "MD5"}
    found += [f"{name} {head[key]}" for key, name in names.items() if head.get(key)]
    etag = str(head.get("ETag", "")).strip('"')
    return [*found, *([f"MD5 {etag}"] if len(etag) == 32 and etag.isalnum() else [])]


ENDPOINT: Final[Mapping[str, Callable[[Endpoint], str]]] = {
    "resolve": check_resolve,
    "connect": check_connect,
    "TLS": check_tls,
    "clock": check_clock,
}
"""Checks without any client."""

READING: Final[Mapping[str, Callable[[Target, Found], Awaitable[str]]]] = {
    "get": check_get,
    "range": check_range,
    "version": check_version,
    "checksum": check_checksum,
    "latency": check_latency,
    "speed": check_speed,
}


@dataclass(frozen=True, slots=True)
class Scratch:
    """Objects to write.

    Attributes:
        target: The store.
        name: The beginning of all their URLs.
        written: Their URLs, each added before it is written.
    """

    target: Target
    name: str
    written: list[str]

    async def write(self, path: str, data: bytes, overwrite: bool = True) -> None:
        """Writes one object."""
        storage = await self.target.storages.at(path)
        async with await storage.upload(path, overwrite=overwrite) as upload:
            await upload.write(data)


async def examine_writing(target: Target) -> AsyncGenerator[CheckResult, None]:
    """Makes the checks that write; removes everything, also where it is interrupted."""
    async with temporary_objects(target.options) as written:
        scratch = Scratch(target, f"{target.folder}streamrec-doctor-{uuid4().hex[:8]}", written)
        first = await run_check("write", lambda: check_write(scratch))
        yield first
        if first.ok:
            yield await run_check("exclusive", lambda: check_exclusive(scratch))
            yield await run_check("multipart", lambda: check_multipart(scratch))
            yield await run_check("remove", lambda: check_remove(scratch))


async def check_write(scratch: Scratch) -> str:
    path, data = f"{scratch.name}-write", uuid4().bytes * (WRITTEN_BYTES // 16)
    scratch.written.append(path)
    try:
        await scratch.write(path, data)
    except UnsupportedOperationError as error:
        scratch.written.remove(path)
        raise NotCheckedError(f"this store is read only: {error}") from error
    storage = await scratch.target.storages.at(path)
    if await storage.read_range(path, 0, len(data)) != data:
        raise CheckError(f"{path} is not what was written: a cache between may be stale")
    return f"{format_bytes(len(data))} written and read again"


async def check_exclusive(scratch: Scratch) -> str:
    path = f"{scratch.name}-exclusive"
    scratch.written.append(path)
    try:
        await scratch.write(path, b"first", overwrite=False)
        await scratch.write(path, b"second", overwrite=False)
    except AlreadyExistsError:
        return "an object that is there is not replaced with overwrite=False"
    except UnsupportedOperationError as error:
        raise NotCheckedError("this store cannot create exclusively: give each writer names of its own") from error
    raise CheckError("overwrite=False replaced an object: give each writer names of its own")


async def check_multipart(scratch: Scratch) -> str:
    """Writes an object in two parts, and gives up another one after its first part."""
    path, data = f"{scratch.name}-parts", uuid4().bytes * (PARTS_BYTES // 16)
    scratch.written.append(path)
    await scratch.write(path, data)
    storage = await scratch.target.storages.at(path)
    if await storage.read_range(path, len(data) - 100, len(data)) != data[-100:]:
        raise CheckError(f"{path} is not what was written in two parts: write shards of at most 8 MB to this store")
    aborted = f"{scratch.name}-aborted"
    scratch.written.append(aborted)
    upload = await storage.upload(aborted)
    await upload.write(data)
    await upload.abort()
    if scheme_of(path) == "s3" and await unfinished_uploads(aborted, scratch.target.options):
        raise CheckError(f"the aborted upload of {aborted} is still there: allow AbortMultipartUpload")
    return f"{format_bytes(len(data))} in 2 parts; an upload that is aborted leaves nothing"


async def check_remove(scratch: Scratch) -> str:
    paths = scratch.written.copy()
    await remove_all(scratch.written, scratch.target.options)
    for path in paths:
        try:
            await (await scratch.target.storages.at(path)).stat(path)
        except NotFoundError:
            continue
        raise CheckError(f"{path} cannot be removed: the credentials lack the right to delete; remove it yourself")
    return "everything that was written is removed"
