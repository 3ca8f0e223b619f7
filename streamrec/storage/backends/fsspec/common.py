"""Translates names, listings and exceptions of fsspec filesystems.

fsspec specifies little about errors, so the rule is: errors with a Python class of their own
(FileNotFoundError, ...) are final, programming errors (TypeError, ValueError, ...) are final, and
the rest is transient and retried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ftplib import error_perm
from functools import partial
from tarfile import TarError
from typing import Any, Final
from zipfile import BadZipFile

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.dirfs import DirFileSystem

from streamrec.errors import (
    NotFoundError,
    PermissionDeniedError,
    StorageError,
    UnsupportedOperationError,
)
from streamrec.storage.backend import ObjectInfo
from streamrec.storage.faults import Cause, TransientError, Translated, error_from_status
from streamrec.storage.options import full_url, modified_of, version_of
from streamrec.storage.urls import Glob, directory_advice, is_url, split_chain

_MANGLED: Final = re.compile(r"[#?\t\r\n]")
_STAND_IN: Final = "streamrec-path"

_MISTAKES = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ImportError,
    IsADirectoryError,
    NotADirectoryError,
    FileExistsError,
    BadZipFile,
    TarError,
    error_perm,
)


def info_of(path: str, entry: Mapping[str, Any]) -> ObjectInfo:
    """Converts fsspec's info about one path; a directory is a StorageError."""
    if entry.get("type") == "directory":
        raise StorageError(directory_advice(path), path)
    size = (
        None if entry.get("type") == "link" else entry.get("size")
    )  # a listing has the size of the link itself
    return ObjectInfo(
        path, None if size is None else int(size), version_of(entry), modified_of(entry)
    )


def infos_of(prefix: str, entries: Mapping[str, Mapping[str, Any]]) -> list[ObjectInfo]:
    """Returns the objects of a listing whose URL begins with the prefix."""
    before, url, after = split_chain(prefix)
    files = [
        (full_url(url, name), entry)
        for name, entry in entries.items()
        if entry.get("type") != "directory"
    ]
    return [info_of(before + path + after, entry) for path, entry in files if path.startswith(url)]


def lists_directories(filesystem: Any) -> bool:
    """Whether to list a filesystem directory by directory, because its `find` is fsspec's default
    implementation.

    That one silently omits directories that cannot be listed, and enters directories that no
    pattern can match.
    """
    if isinstance(filesystem, DirFileSystem):
        return lists_directories(filesystem.fs)
    if isinstance(filesystem, AsyncFileSystem):
        return type(filesystem)._find is AsyncFileSystem._find
    return type(filesystem).find is AbstractFileSystem.find


def select_entries(
    prefix: str, directory: str, listed: Iterable[Mapping[str, Any]], glob: Glob | None
) -> tuple[list[ObjectInfo], list[str]]:
    """Selects from the entries that `ls` returned for a directory.

    Returns the objects whose URL begins with the prefix, and the directories to list next.
    """
    before, url, after = split_chain(prefix)
    entries = {entry["name"]: entry for entry in listed}

    def enters(name: str) -> bool:
        below = f"{full_url(url, name.rstrip('/'))}/"
        if entries[name].get("type") != "directory" or name.rstrip("/") == directory.rstrip("/"):
            return False
        if below.startswith(url):
            return glob is None or glob.enters(before + below + after)
        return url.startswith(below)

    return infos_of(prefix, entries), list(filter(enters, entries))


def parent(prefix: str) -> str:
    """Returns the directory of all objects that begin with the prefix.

    >>> parent("foo://host/dir/train-"), parent("foo://host"), parent("train-"), parent("/train-")
    ('foo://host/dir', 'foo://host', '', '/')
    >>> parent("zip://dir/train-::s3://bucket/c.zip")
    'zip://dir::s3://bucket/c.zip'
    """
    before, url, after = split_chain(prefix)
    scheme, colon, rest = url.partition("://") if is_url(url) else ("", "", url)
    top = rest if colon else rest[: rest.find("/") + 1]
    return before + scheme + colon + (rest.rpartition("/")[0] or top) + after


def name_of(filesystem: Any, url: str) -> str:
    """Returns the filesystem's name for a URL, with its path byte for byte.

    Filesystems parse their URLs as web URLs: `?` and `#` end the path, and control characters are
    removed. One that parses its own names, too, would access another object: then it is a
    StorageError.
    """
    scheme, colon, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    if not (colon and slash and _MANGLED.search(path)):
        return str(filesystem._strip_protocol(url))
    name = str(filesystem._strip_protocol(f"{scheme}://{host}/{_STAND_IN}")).replace(
        _STAND_IN, path
    )
    if filesystem._strip_protocol(name) != name:
        client = type(filesystem).__name__
        raise StorageError(
            f"{client} cannot name this object: use a name without ? and # and control characters",
            url,
        )
    return name


def root_of(url: str) -> str:
    """Returns a URL without its path, from which fsspec derives options; a chain stays as it is.

    >>> root_of("sftp://user@host/run#1"), root_of("zip://a#b::file://c.zip")
    ('sftp://user@host/', 'zip://a#b::file://c.zip')
    """
    scheme, colon, rest = url.partition("://")
    return (
        f"{scheme}://{rest.partition('/')[0]}/" if colon and not split_chain(url).is_chain else url
    )


def _translate(
    error: Exception, path: str, start: int | None, end: int | None
) -> StorageError | TransientError:
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"there is no such object ({said}): check the URL", path, start, end)
    if isinstance(error, PermissionError):
        return PermissionDeniedError(
            f"access refused ({said}): check the credentials", path, start, end
        )
    if isinstance(error, NotImplementedError):
        return UnsupportedOperationError(
            f"this filesystem cannot do this ({said})", path, start, end
        )
    if isinstance(error, _MISTAKES):
        return StorageError(said, path, start, end)
    if isinstance(error, TimeoutError):
        return TransientError(Cause.TIMED_OUT, said)
    status = _status(error)
    if any(
        cls.__name__ == "ClientAuthenticationError" for cls in type(error).__mro__
    ):  # azure-core's
        return TransientError(Cause.CREDENTIALS if status is None else Cause.REFUSED, said)
    if status is not None:
        return error_from_status(status, said, path, start, end)
    return TransientError(
        Cause.CONNECT if isinstance(error, ConnectionRefusedError) else Cause.BROKEN, said
    )


def _status(error: Exception) -> int | None:
    """Returns the HTTP status of an exception of azure-core, aiohttp or requests."""
    holders = (error, getattr(error, "response", None))
    values = [
        getattr(holder, name, None) for holder in holders for name in ("status_code", "status")
    ]
    return next(
        (status for status in values if isinstance(status, int) and 400 <= status < 600), None
    )


translate_errors = partial(Translated, (Exception,), _translate)
