"""One row of `streamrec doctor`: a check returns what it found, or raises what is wrong."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import anyio
from fsspec.core import url_to_fs

from streamrec import StreamrecError
from streamrec.cli.sources import directory_of
from streamrec.display import mask_values
from streamrec.storage import Storages

__all__ = ["CheckError", "CheckResult", "NotCheckedError", "Target", "ask_client", "run_check", "scheme_of"]


class CheckError(Exception):
    """A check found something that is not as it should be; the message says what to do."""


class NotCheckedError(Exception):
    """This store has no such thing; the message says why, and what follows from it."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found.

    Attributes:
        name: What was looked at.
        ok: Whether it is as it should be; None where it was not looked at.
        seconds: How long that took.
        found: What was found, or what is wrong and what to do.
    """

    name: str
    ok: bool | None
    seconds: float
    found: str


@dataclass(frozen=True, slots=True)
class Target:
    """What is looked at.

    Attributes:
        url: What was named.
        options: Storage options.
        storages: Where it lies.
    """

    url: str
    options: Mapping[str, Any]
    storages: Storages

    @property
    def folder(self) -> str:
        """The directory that is named, or that the object or pattern lies in; ends in a slash."""
        return directory_of(self.url) or self.url[: self.url.rfind("/") + 1]


async def run_check(name: str, check: Callable[[], Awaitable[str]]) -> CheckResult:
    """Makes a check, and takes the time."""
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
