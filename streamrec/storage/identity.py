"""Which URLs are one object, however they are spelled.

A local file is the same where device and inode are, or the path without symbolic links. An object in a store is the
same where endpoint, bucket and key are; keys that differ in doubled slashes, `.` and `..` count as one, because some
stores take them so. What a chain of URLs leads to counts as well: the archive, or what is cached.
"""

from __future__ import annotations

import os
import posixpath
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import fsspec

from streamrec.storage.urls import ALIASES, CACHES, local_path, protocol_of, split_chain

__all__ = ["PORTS", "Identity", "identities", "is_special"]

Identity = tuple[str | int, ...]
"""The kind of place, and what it calls the object."""

PORTS: Final = {"http": 80, "https": 443}
HERE: Final = {"localhost": "127.0.0.1", "::1": "127.0.0.1", "0.0.0.0": "127.0.0.1"}


def identities(url: str, endpoint: str = "") -> frozenset[Identity]:
    """What tells an object from all others: two URLs are of one object where they share an identity.

    Args:
        url: Its URL, or path.
        endpoint: The URL of its server, where the object's own URL does not say that.

    Returns:
        Nothing for what is not a plain file: many may write to a device or a pipe.

    Examples:
        >>> bool(identities("s3a://b//k") & identities("s3://b/x/../k")), bool(identities("s3://b/k") & identities("k"))
        (True, False)
        >>> identities("memory://a/b") == identities("memory:///a//b")
        True
    """
    _, url, after = split_chain(url)
    found = identities(after.removeprefix("::"), endpoint) if after else frozenset()
    protocol = protocol_of(url)
    if protocol in CACHES:
        return found
    protocol = ALIASES.get(protocol, protocol)
    if protocol == "file":
        return found if after else _of_file(url)
    return found | {(protocol, server(endpoint), after, _name(protocol, url))}


def server(endpoint: str) -> str:
    """An endpoint, so that two spellings of one server are alike; "" for the usual one.

    >>> server("http://LocalHost:80/") == server("http://127.0.0.1")
    True
    """
    if not endpoint:
        return ""
    parts = urlsplit(endpoint)
    scheme, host, port, path = parts.scheme, parts.hostname or "", parts.port, parts.path
    if host.endswith((".amazonaws.com", ".googleapis.com")):
        return ""  # a bucket's name is one for all of these
    return f"{HERE.get(host, host)}:{port or PORTS.get(scheme, '')}{path.rstrip('/')}"


def is_special(path: Path) -> bool:
    """Whether a path leads to what is neither a plain file nor a directory, or to an open file by its number."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    if stat.S_ISREG(mode):
        return str(path).startswith(("/dev/std", "/dev/fd/", "/proc/"))
    return not stat.S_ISDIR(mode)


def _of_file(url: str) -> frozenset[Identity]:
    local = local_path(url)
    if is_special(local):
        return frozenset()
    found: set[Identity] = {("file", os.path.realpath(local))}
    with suppress(OSError):  # there is none yet
        status = os.stat(local)
        found.add(("file", status.st_dev, status.st_ino))
    return frozenset(found)


def _name(protocol: str, url: str) -> str:
    """Bucket and key, or host and path."""
    if protocol not in ("s3", "gs", "memory"):
        with suppress(ImportError, ValueError):  # then it cannot be read or written either
            url = str(fsspec.get_filesystem_class(protocol)._strip_protocol(url))
    return posixpath.normpath("/" + url.partition("://")[2] if "://" in url else "/" + url).lstrip("/")
