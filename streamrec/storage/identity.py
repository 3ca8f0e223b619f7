"""Detects different spellings of one object's URL.

Two local paths are the same file if device and inode are equal, or the path without symbolic links.
Two URLs are the same object if endpoint, bucket and key are equal; keys that differ only in doubled
slashes, `.` and `..` count as equal, because some stores treat them so. The targets of a chain of
URLs count, too: the archive, or the cached object.
"""

from __future__ import annotations

import os
import posixpath
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from streamrec.storage.urls import CACHES, is_url, local_path, protocol_of, split_chain
from streamrec.store_kinds import kind_of_protocol

Identity = tuple[str | int, ...]
"""The kind of store, and the object's name in it."""

PORTS: Final = {"http": 80, "https": 443}
HERE: Final = {"localhost": "127.0.0.1", "::1": "127.0.0.1", "0.0.0.0": "127.0.0.1"}


def identities(url: str, endpoint: str = "") -> frozenset[Identity]:
    """Returns the identities of an object: two URLs name the same object if they share an identity.

    A device or a pipe has none, because several writers may use it. `endpoint` is the URL of the
    server if the object's URL does not contain it.

    Examples:
        >>> bool(identities("s3a://b//k") & identities("s3://b/x/../k")), bool(identities("s3://b/k") & identities("k"))
        (True, False)
        >>> identities("memory://a/b") == identities("memory:///a//b")
        True
    """  # noqa: E501
    _, url, after = split_chain(url)
    targets = identities(after.removeprefix("::"), endpoint) if after else frozenset()
    protocol = protocol_of(url)
    if protocol in CACHES:
        return targets
    protocol = kind_of_protocol(protocol).name
    if protocol == "file":
        return targets if after else _identify_file(url)
    return targets | {
        (protocol, _normalize_endpoint(endpoint), after, _normalize_name(protocol, url))
    }


def _normalize_endpoint(endpoint: str) -> str:
    """Returns one spelling for all spellings of a server; "" for the default one.

    >>> _normalize_endpoint("http://LocalHost:80/") == _normalize_endpoint("http://127.0.0.1")
    True
    """
    if not endpoint:
        return ""
    parts = urlsplit(endpoint)
    scheme = parts.scheme
    host = parts.hostname or ""
    port = parts.port
    path = parts.path
    if host.endswith((".amazonaws.com", ".googleapis.com")):
        return ""  # bucket names are unique across these
    return f"{HERE.get(host, host)}:{port or PORTS.get(scheme, '')}{path.rstrip('/')}"


def is_special(path: Path) -> bool:
    """Whether a path is neither a regular file nor a directory, or names an open file by its
    descriptor.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    if stat.S_ISREG(mode):
        return str(path).startswith(("/dev/std", "/dev/fd/", "/proc/"))
    return not stat.S_ISDIR(mode)


def _identify_file(url: str) -> frozenset[Identity]:
    local = local_path(url)
    if is_special(local):
        return frozenset()
    by_path: Identity = ("file", os.path.realpath(local))
    try:
        status = os.stat(local)
    except OSError:  # the file does not exist yet
        return frozenset({by_path})
    return frozenset({by_path, ("file", status.st_dev, status.st_ino)})


def _normalize_name(protocol: str, url: str) -> str:
    """Returns bucket and key, or host and path."""
    if is_url(url):  # fsspec's class strips only some of the spellings
        url = f"{protocol}://{url.partition('://')[2]}"
    if not kind_of_protocol(protocol).has_buckets:
        import fsspec

        with suppress(ImportError, ValueError):  # such a URL cannot be read or written either
            url = str(fsspec.get_filesystem_class(protocol)._strip_protocol(url))
    return posixpath.normpath("/" + url.partition("://")[2] if "://" in url else "/" + url).lstrip(
        "/"
    )
