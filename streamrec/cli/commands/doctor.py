"""`streamrec doctor`: checks whether a store can be reached and does what streamrec needs.

A check returns a line that says what it found, or raises an error that says what is wrong. The test
objects of `--write` are written below the URL that was typed, and are removed at the end.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import anyio
import click
from fsspec.core import url_to_fs

from streamrec import NotFoundError, RetryPolicy, StreamrecError
from streamrec.cli import options
from streamrec.cli.library import (
    AlreadyExistsError,
    ObjectChangedError,
    Storages,
    UnsupportedOperationError,
    describe_leftover,
    display_name,
    examine_cache,
    find_journals,
    is_temporary,
    kind_of_protocol,
    mask_values,
    secured_object,
)
from streamrec.cli.measuring import measure
from streamrec.cli.output import format_bytes, plural, print_json, print_line
from streamrec.cli.program import STORE_FAILED
from streamrec.cli.reading import run
from streamrec.cli.sources import Item, directory_of, find, storages_for
from streamrec.cli.sweep import BenchPlan
from streamrec.cli.writing import remove_all, temporary_objects

MARKS: Final = {True: "ok  ", False: "FAIL", None: "-   "}

ANSWER_SECONDS: Final = 10.0
LOOKS: Final = 10
"""How many requests measure the latency, and how many hidden objects are named. Not tuned."""


@click.command(
    "doctor",
    epilog=options.examples(
        "streamrec doctor s3://bucket/train/", "streamrec doctor --write s3://bucket/scratch/"
    ),
)
@click.argument("url", shell_complete=options.complete_files)
@click.option(
    "--write/--no-write",
    default=None,
    help=(
        "Also write test objects (10 MB) below URL and remove them. Without either, it asks if you "
        "are at a terminal."
    ),
)
@options.as_json
@options.storage_options
def doctor_command(
    url: str, write: bool | None, as_json: bool, storage_options: Mapping[str, Any]
) -> int:
    """Checks a store step by step: name, connection, TLS, clock, listing, reading, versions,
    checksums, speed.

    If a check fails, it says what to do, and the exit code is 3. URL is a directory, a pattern or
    an object.
    """
    if write is None:
        write = (
            sys.stdin.isatty()
            and not as_json
            and click.confirm(f"Write and remove test objects (10 MB) below {display_name(url)}?")
        )
    rows = run(run_checks(url, write, as_json, storage_options))
    if as_json:
        print_json(
            {
                "ok": all(row.ok is not False for row in rows),
                "checks": [asdict(row) for row in rows],
            }
        )
    return STORE_FAILED if any(row.ok is False for row in rows) else 0


class CheckError(Exception):
    """A check failed; the message says what to do."""


class NotCheckedError(Exception):
    """A check does not apply to this store; the message says why, and what follows from it."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: The name of the check.
        ok: Whether it passed; None if it does not apply to this store.
        seconds: How long it took.
        found: What it found, or what is wrong and what to do.
    """

    name: str
    ok: bool | None
    seconds: float
    found: str


async def run_checks(
    url: str, write: bool, quiet: bool, storage_options: Mapping[str, Any]
) -> list[CheckResult]:
    """Makes all checks, and prints each result at once unless `quiet`.

    A check that later ones depend on ends the run if it fails.
    """
    rows: list[CheckResult] = []

    async def check(name: str, function: Callable[..., Awaitable[str]], *arguments: Any) -> bool:
        row = await make_check(name, function, *arguments)
        rows.append(row)
        if not quiet:
            print_line(f"{MARKS[row.ok]}  {name:<9}  {row.seconds:6.3f} s  {row.found}")
            sys.stdout.flush()
        return row.ok is True

    endpoint = endpoint_of(url, storage_options)
    for name, look in ENDPOINT.items() if endpoint is not None else ():
        # A wrong clock explains why the store refuses requests: the other checks are still made.
        if not await check(name, anyio.to_thread.run_sync, look, endpoint) and name != "clock":
            return rows
    async with (
        storages_for(storage_options, RetryPolicy(patience=10)) as storages,
        temporary_objects(storage_options) as written,
    ):
        store = CheckedStore(url=url, options=storage_options, storages=storages, written=written)
        if await check("list", check_list, store):
            largest = max(store.found, key=lambda item: item.size or 0, default=None)
            for name, read in (
                READING.items()
                if largest is not None and largest.size
                else [("get", check_nothing)]
            ):
                await check(name, read, store, largest)
            await check_surroundings(check, store)
        for name, change in WRITING.items() if write else ():
            if not await check(name, change, store) and name == "write":
                break
    return rows


async def check_surroundings(check: Callable[..., Awaitable[bool]], store: CheckedStore) -> None:
    """Checks what other runs left in the store, and the cache on this machine, if there is one."""
    await check("leftovers", check_leftovers, store)
    await check("replaced", check_replaced, store)
    if store.options.get("cache_dir") or os.environ.get("STREAMREC_CACHE_DIR"):
        await check("cache", check_cache, store)


async def make_check(
    name: str, function: Callable[..., Awaitable[str]], *arguments: Any
) -> CheckResult:
    """Calls the function of a check, and makes a result of what it returns or raises."""
    began = time.perf_counter()
    ok: bool | None = None
    try:
        found = await function(*arguments)
        ok = True
    except NotCheckedError as reason:
        found = str(reason)
    except (StreamrecError, OSError, http.client.HTTPException, CheckError) as error:
        found = str(error) or type(error).__name__
        ok = False
    return CheckResult(name, ok, time.perf_counter() - began, found)


class Endpoint(NamedTuple):
    """A server: its name, its port, and whether requests use TLS."""

    host: str
    port: int
    secure: bool

    def connect(self) -> socket.socket:
        """Opens a TCP connection to the server, within ten seconds."""
        return socket.create_connection(self[:2], ANSWER_SECONDS)


def endpoint_of(url: str, storage_options: Mapping[str, Any]) -> Endpoint | None:
    """The server of a URL; None for a local path or another kind of store.

    The options name it, the environment, or the URL itself; else it is the cloud's public server.

    Examples:
        >>> endpoint_of("s3://b/x", {"endpoint_url": "http://127.0.0.1:9000"})
        Endpoint(host='127.0.0.1', port=9000, secure=False)
        >>> endpoint_of("https://example.org/x", {}), endpoint_of("/local/file", {})
        (Endpoint(host='example.org', port=443, secure=True), None)
    """
    kind = kind_of_protocol(scheme_of(url))
    if kind.module == "http":
        said = url
    elif kind.host:
        client = storage_options.get("client_kwargs") or {}
        named = [
            storage_options.get("endpoint_url"),
            storage_options.get("endpoint"),
            client.get("endpoint_url"),
        ]
        named += [os.environ.get(name) for name in kind.endpoint_variables]
        said = next((text for text in named if text), f"https://{kind.host}")
    else:
        return None
    server = urlsplit(said if "://" in said else f"http://{said}")
    secure = server.scheme == "https"
    return Endpoint(server.hostname or "", server.port or (443 if secure else 80), secure)


def check_resolve(endpoint: Endpoint) -> str:
    """Finds the addresses of the server's name."""
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise CheckError(
            f"{endpoint.host} has no address ({error}): check the endpoint's name, and DNS"
        ) from error
    return f"{endpoint.host} is {', '.join(dict.fromkeys(str(address[4][0]) for address in found))}"


def check_connect(endpoint: Endpoint) -> str:
    """Connects to the server's port."""
    try:
        endpoint.connect().close()
    except OSError as error:
        raise CheckError(
            f"no connection to port {endpoint.port} ({error}): check that the server runs and that "
            "no firewall is in the way"
        ) from error
    return f"port {endpoint.port}"


def check_tls(endpoint: Endpoint) -> str:
    """Makes a TLS handshake, and checks the certificate."""
    if not endpoint.secure:
        return "not encrypted: fine on this machine or in a private network"
    context = ssl.create_default_context()
    try:
        with (
            endpoint.connect() as plain,
            context.wrap_socket(plain, server_hostname=endpoint.host) as secure,
        ):
            cipher = secure.cipher()
            ends = (secure.getpeercert() or {}).get("notAfter")
            return (
                f"{secure.version()}, {cipher[0] if cipher else 'no cipher'}, certificate until "
                f"{ends}"
            )
    except OSError as error:
        raise CheckError(
            f"{error}: check the certificate, or name the CA's file in SSL_CERT_FILE"
        ) from error


def check_clock(endpoint: Endpoint) -> str:
    """Compares this machine's clock with the `Date` of an answer; five minutes off is an error."""
    kind = http.client.HTTPSConnection if endpoint.secure else http.client.HTTPConnection
    connection = kind(endpoint.host, endpoint.port, timeout=ANSWER_SECONDS)
    try:
        connection.request("HEAD", "/")
        date = connection.getresponse().getheader("Date")
    finally:
        connection.close()
    if date is None:
        return "the server sends no date"
    skew = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    ahead = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's clock"
    if abs(skew) > 300:
        raise CheckError(
            f"{ahead}: set this machine's clock; stores refuse requests that are 15 minutes off"
        )
    return "as the server's, to a few seconds" if abs(skew) < 3 else ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStore:
    """The store to check.

    Attributes:
        url: The URL that was typed.
        options: The options of the store.
        storages: The open stores.
        written: The URLs of test objects, each added before its object is written.
        found: The objects that the store lists below the URL.
    """

    url: str
    options: Mapping[str, Any]
    storages: Storages
    written: list[str]
    found: list[Item] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """The directory that was typed, or that of the object or pattern; it ends in a slash."""
        # A name without a slash is in the working directory: "" would name no directory.
        return directory_of(self.url) or self.url[: self.url.rfind("/") + 1] or "./"

    def new_name(self, ending: str) -> str:
        """The URL of a new test object, which will be removed."""
        self.written.append(f"{self.folder}streamrec-doctor-{uuid4().hex[:8]}-{ending}")
        return self.written[-1]

    async def read(self, path: str, start: int, end: int, version: str | None = None) -> bytes:
        """Reads bytes of an object; with `version`, only if the object has that version."""
        return await (await self.storages.at(path)).read_range(path, start, end, version)

    async def write(self, path: str, data: bytes, overwrite: bool = True) -> None:
        """Writes an object; without `overwrite`, an object that exists is an error."""
        async with await (await self.storages.at(path)).upload(path, overwrite=overwrite) as upload:
            await upload.write(data)


def scheme_of(url: str) -> str:
    """The kind of store that a URL is in: "s3", "gs", "https", ...; "" for a local path.

    Examples:
        >>> [scheme_of(url) for url in ("s3a://bucket/a", "gcs://bucket/a", "https://host/a", "/a")]
        ['s3', 'gs', 'https', '']
    """
    return kind_of_protocol(urlsplit(url).scheme).name


async def ask_client(path: str, options: Mapping[str, Any], ask: Callable[[Any, str], Any]) -> Any:
    """Calls `ask` in a thread with the store's fsspec client, for what `Storage` cannot do.

    Raises:
        NotCheckedError: fsspec has no such client.
        CheckError: The client raised an error.
    """
    plain = {key: value for key, value in options.items() if key != "backend"}

    def call() -> Any:
        try:
            # Only the scheme: a key may look like a chain of URLs, or like a version.
            client, _ = url_to_fs(f"{path.partition('://')[0]}://", **plain)
        except (ImportError, TypeError, ValueError) as error:
            said = mask_values(str(error), plain)
            raise NotCheckedError(
                f"not looked at: fsspec has no client for this ({said})"
            ) from error
        try:
            return ask(client, path.partition("://")[2])
        except Exception as error:  # clients raise errors of many packages
            raise CheckError(mask_values(str(error), plain) or type(error).__name__) from error

    return await anyio.to_thread.run_sync(call)


async def check_list(store: CheckedStore) -> str:
    """Lists the objects, and keeps them in `store.found`."""
    directory = directory_of(store.url)
    if directory is None:
        store.found.extend(await find(store.storages, [store.url]))
    else:
        storage = await store.storages.at(directory)
        found = [Item.from_listing(info) async for info in storage.list(directory)]
        store.found.extend(replace(item, storage_options=store.options) for item in found)
    size = sum(item.size or 0 for item in store.found)
    return f"{plural(len(store.found), 'object')}, {format_bytes(size)}"


async def check_nothing(store: CheckedStore, item: Item | None) -> str:
    """Takes the place of all checks that read an object where there is none."""
    raise NotCheckedError(
        "nothing to read: name a directory that has objects, to look at reading too"
    )


async def check_get(store: CheckedStore, item: Item) -> str:
    """Reads up to 64 KiB, and compares their number with the listing."""
    size = min(item.size or 0, 1 << 16)
    got = await store.read(item.path, 0, size)
    if len(got) != size:
        raise CheckError(
            f"{len(got):,} bytes arrived, and the listing says {size:,}: was the object replaced?"
        )
    return f"{plural(size, 'byte')} of {item.path}"


async def check_latency(store: CheckedStore, item: Item) -> str:
    """Measures how long requests for one byte take."""
    took = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        await store.read(item.path, 0, 1)
        took.append(time.perf_counter() - began)
    return (
        f"one byte takes {statistics.median(took) * 1e3:.1f} ms, the slowest of {LOOKS} requests "
        f"{max(took) * 1e3:.1f} ms"
    )


async def check_range(store: CheckedStore, item: Item) -> str:
    """Reads bytes alone and as a part of a longer range, and compares them."""
    size = min(item.size or 0, 1 << 16)
    whole = await store.read(item.path, 0, size)
    half = await store.read(item.path, size // 2, size)
    if whole[size // 2 :] != half or len(whole) != size:
        raise CheckError(
            "a range differs from the same bytes of the whole object: a proxy may not support "
            "ranges"
        )
    return f"bytes {size // 2:,} to {size:,} are the same alone and as a part"


async def check_version(store: CheckedStore, item: Item) -> str:
    """Asks for another version of the object, which the store must refuse."""
    version = (await (await store.storages.at(item.path)).stat(item.path)).version
    if version is None:
        raise CheckError(
            "the store gives no version: a replacement during a read would go unnoticed"
        )
    await store.read(item.path, 0, 1, version)
    try:
        await store.read(
            item.path, 0, 1, str(int(version) + 1) if version.isdigit() else '"no-such-version"'
        )
    except ObjectChangedError:
        return f"version {version}; another one is refused"
    raise CheckError(
        "the store returned this version although another one was requested: a change during a "
        "read would go unnoticed"
    )


async def check_speed(store: CheckedStore, item: Item) -> str:
    """Measures MB/s with 1 and with 16 connections, for a second each."""
    rates = []
    for connections in (1, 16):
        done = await measure([item], connections, 1 << 22, BenchPlan())
        rates.append(f"{done.rate:,.0f} MB/s with {plural(connections, 'connection')}")
    return ", ".join(rates)


async def unfinished_uploads(
    prefix: str, options: Mapping[str, Any]
) -> Sequence[Mapping[str, Any]]:
    """The first thousand unfinished multipart uploads whose keys on S3 begin with `prefix`.

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
            return ()  # `rclone serve s3` answers so for a bucket without any upload
        raise CheckError(
            f"{error}: allow ListBucketMultipartUploads, or set a lifecycle rule that ends them"
        ) from error
    bucket_key = prefix.partition("://")[2].partition("/")[2]
    return [upload for upload in page.get("Uploads") or () if upload["Key"].startswith(bucket_key)]


async def check_leftovers(store: CheckedStore) -> str:
    """Looks for unfinished uploads of killed writers: the store bills their parts."""
    if scheme_of(store.url) == "gs":
        raise NotCheckedError(
            "Google Cloud Storage lists no unfinished uploads, and drops them after a week"
        )
    if scheme_of(store.url) != "s3":
        raise NotCheckedError("only S3 lists unfinished uploads")
    found = await unfinished_uploads(store.folder, store.options)
    # A younger upload may be that of a writer at work.
    limit = datetime.now(UTC) - timedelta(days=1)
    old = [upload for upload in found if upload["Initiated"] < limit]
    if old:
        raise CheckError(
            f"{plural(len(old), 'unfinished upload')} older than a day, of {old[0]['Key']} ...: "
            "the store bills their "
            "parts; set a lifecycle rule AbortIncompleteMultipartUpload"
        )
    return (
        f"{plural(len(found), 'upload')} under way, none older than a day"
        if found
        else "no unfinished upload"
    )


async def check_replaced(store: CheckedStore) -> str:
    """Looks for hidden objects: old contents of objects that a run replaces, and writers' files."""
    storage = await store.storages.at(store.folder)
    try:
        hidden = [
            info.path
            async for info in storage.list(store.folder, hidden=True)
            if is_temporary(info.path)
        ]
    except UnsupportedOperationError as error:
        raise NotCheckedError(str(error)) from error
    left = [f"{path} ({outcome})" for path in hidden if (outcome := describe_leftover(path))]
    named = ", ".join(left[:LOOKS])
    others = (
        f"; {plural(len(left), 'hidden object')} of writers, at work or killed: {named}"
        if left
        else ""
    )
    old = [path for path in hidden if secured_object(path)]
    # A journal says whether all new objects of a run were in place; without one it is unknown.
    journals = [journal async for _, journal in find_journals(store.storages, store.folder)]
    for journal in journals:
        name = journal.objects[0].path
        count = plural(len(journal.objects), "object")
        if journal.state == "complete":
            raise CheckError(
                f"a run that replaced {count} ({name}) was killed when all new ones were in place, "
                f"or is at work: streamrec recover {store.folder} removes the hidden old ones"
                f"{others}"
            )
        raise CheckError(
            f"a run that replaces {count} ({name}) was killed half way, or is at work: streamrec "
            f"recover {store.folder} puts the old ones back{others}"
        )
    if old:
        raise CheckError(
            f"{old[0]} is what {secured_object(old[0])} was before a run replaced it, and nothing "
            f"says whether that run was complete; there are {len(old):,} such objects: compare "
            f"them with the new ones, and rename or remove them yourself{others}"
        )
    return f"no object was replaced half way{others}"


async def check_cache(store: CheckedStore) -> str:
    """The cache on a local disk: it is this user's, has room, and is fast enough."""
    disk = await anyio.to_thread.run_sync(examine_cache, store.options)
    if disk is None:
        raise NotCheckedError("there is no cache")
    free = format_bytes(disk.free)
    found = (
        f"{display_name(disk.directory)} has {format_bytes(disk.used)} of "
        f"{format_bytes(disk.limit)}, and the disk {free} free; it writes "
        f"{disk.write_rate / 1e6:,.0f} MB/s and reads {disk.read_rate / 1e6:,.0f} MB/s"
    )
    if disk.free < disk.limit - disk.used:
        raise CheckError(
            f"{found}: the disk is full before the cache is; set cache_bytes to at most "
            f"{format_bytes(disk.used + disk.free)}"
        )
    return found


async def check_checksum(store: CheckedStore, item: Item) -> str:
    """Asks S3 or Google Cloud Storage for the checksums of an object."""
    scheme = scheme_of(item.path)
    if scheme not in ("s3", "gs"):
        raise NotCheckedError("this kind of store gives none; each record has its own CRC32C")

    def ask(client: Any, inner: str) -> Any:
        bucket, _, key = inner.partition("/")
        if scheme == "gs":
            return client.call("GET", "b/{}/o/{}", bucket, key, json_out=True)
        return client.call_s3("head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")

    head: Mapping[str, Any] = await ask_client(item.path, store.options, ask)
    return (
        ", ".join(checksums_of(head))
        or "none: damage in the store shows only in the CRC32C of each record"
    )


def checksums_of(head: Mapping[str, Any]) -> list[str]:
    """The checksums in the description of an object by S3 or Google Cloud Storage.

    Examples:
        >>> head = {"ETag": '"d41d8cd98f00b204e9800998ecf8427e"', "ChecksumCRC32C": "AAAAAA=="}
        >>> checksums_of(head | {"Size": 0})
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
"""The checks that need no client of the store, in order."""

READING: Final[Mapping[str, Callable[[CheckedStore, Item], Awaitable[str]]]] = {
    "get": check_get,
    "range": check_range,
    "version": check_version,
    "checksum": check_checksum,
    "latency": check_latency,
    "speed": check_speed,
}
"""The checks that read the largest object, in order."""


async def check_write(store: CheckedStore) -> str:
    """Writes 1 MB, and reads it again."""
    path = store.new_name("write")
    data = uuid4().bytes * (1_000_000 // 16)
    try:
        await store.write(path, data)
    except UnsupportedOperationError as error:
        store.written.remove(path)
        raise NotCheckedError(f"this store is read only: {error}") from error
    if await store.read(path, 0, len(data)) != data:
        raise CheckError(f"{path} does not have the content that was written: a cache may be stale")
    return f"{format_bytes(len(data))} written and read again"


async def check_exclusive(store: CheckedStore) -> str:
    """Writes an object twice with `overwrite=False`: the second time must fail."""
    path = store.new_name("exclusive")
    try:
        await store.write(path, b"first", overwrite=False)
        await store.write(path, b"second", overwrite=False)
    except AlreadyExistsError:
        return "an object that is there is not replaced with overwrite=False"
    except UnsupportedOperationError as error:
        raise NotCheckedError(
            "this store cannot create exclusively: give each writer its own names"
        ) from error
    raise CheckError("overwrite=False replaced an object: give each writer its own names")


async def check_multipart(store: CheckedStore) -> str:
    """Writes an object in two parts, and aborts another one after its first part."""
    path = store.new_name("parts")
    data = uuid4().bytes * (9_000_000 // 16)  # two parts, since one has 8 MiB
    await store.write(path, data)
    if await store.read(path, len(data) - 100, len(data)) != data[-100:]:
        raise CheckError(
            f"{path} was written in two parts, and the store returns other bytes: write shards of "
            "at most 8 MB to this store"
        )
    aborted = store.new_name("aborted")
    upload = await (await store.storages.at(aborted)).upload(aborted)
    await upload.write(data)
    await upload.abort()
    if scheme_of(path) == "s3" and await unfinished_uploads(aborted, store.options):
        raise CheckError(
            f"the aborted upload of {aborted} is still there: allow AbortMultipartUpload"
        )
    return f"{format_bytes(len(data))} in 2 parts; an upload that is aborted leaves nothing"


async def check_remove(store: CheckedStore) -> str:
    """Removes all test objects, and asks whether they are gone."""
    paths = store.written.copy()
    await remove_all(store.written, store.options)
    for path in paths:
        try:
            await (await store.storages.at(path)).stat(path)
        except NotFoundError:
            continue
        raise CheckError(
            f"{path} cannot be removed: the credentials lack the right to delete; remove it "
            "yourself"
        )
    return "everything that was written is removed"


WRITING: Final[Mapping[str, Callable[[CheckedStore], Awaitable[str]]]] = {
    "write": check_write,
    "exclusive": check_exclusive,
    "multipart": check_multipart,
    "remove": check_remove,
}
"""The checks of `--write`, in order. Their objects are removed at the end, even after Ctrl-C."""
