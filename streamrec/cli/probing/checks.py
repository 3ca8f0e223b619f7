"""What `streamrec doctor` looks at, step by step. A check returns what it found, or raises what is wrong."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import anyio

from streamrec import ObjectChangedError
from streamrec.cli.output import format_bytes, plural
from streamrec.cli.probing.endpoint import Endpoint, clock_skew, connect, endpoint_of, handshake, resolve
from streamrec.cli.probing.leftovers import check_checksum, check_leftovers, check_replaced
from streamrec.cli.probing.measuring import measure
from streamrec.cli.probing.rows import CheckError, CheckResult, Target, run_check
from streamrec.cli.probing.writing_checks import examine_writing
from streamrec.cli.sources import Found, directory_of, find, storages_for

__all__ = ["CheckResult", "examine"]

SKEW_SECONDS: Final = 300.0
LOOKS: Final = 10
RANGE_BYTES: Final = 1 << 22
SPEED_SECONDS: Final = 1.0


async def examine(url: str, write: bool, storage_options: Mapping[str, Any]) -> AsyncGenerator[CheckResult, None]:
    """Goes through all checks; a later one is left out where it cannot be made.

    Args:
        url: An object, a pattern or a directory.
        write: Whether an object is written below it, and removed again.
        storage_options: Where it lies.
    """
    endpoint = endpoint_of(url, storage_options)
    if endpoint is not None:
        for name, look in endpoint_checks(endpoint):
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


def endpoint_checks(endpoint: Endpoint) -> list[tuple[str, Callable[[Endpoint], str]]]:
    """What is looked at before any client."""
    return [("resolve", check_resolve), ("connect", check_connect), ("TLS", check_tls), ("clock", check_clock)]


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


READING: Final[Mapping[str, Callable[[Target, Found], Awaitable[str]]]] = {
    "get": check_get,
    "range": check_range,
    "version": check_version,
    "checksum": check_checksum,
    "latency": check_latency,
    "speed": check_speed,
}
