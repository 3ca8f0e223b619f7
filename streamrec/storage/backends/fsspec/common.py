"""What filesystems of fsspec say, in our words: names, listings, exceptions.

fsspec promises little about errors, so the rule is: what Python has a name for is final under that name,
mistakes in calls (TypeError, ValueError, ...) are final, and the rest may pass and is tried again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ftplib import error_perm
from tarfile import TarError
from typing import Any, Final
from zipfile import BadZipFile

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.dirfs import DirFileSystem

from streamrec.errors import (
    IntegrityError,
    NotFoundError,
    PermissionDeniedError,
    StorageError,
    UnsupportedOperationError,
)
from streamrec.storage.backend import ObjectInfo
from streamrec.storage.faults import Cause, TransientError, error_translator, from_status
from streamrec.storage.options import full_url, version_of
from streamrec.storage.urls import Glob, directory_advice, is_url, split_chain

__all__ = [
    "check_size",
    "in_directory",
    "info_of",
    "infos_of",
    "lists_directories",
    "name_of",
    "parent",
    "root_of",
    "translate_errors",
]

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


def info_of(path: str, found: Mapping[str, Any], start: int | None = None) -> ObjectInfo:
    """The info that fsspec found for one path."""
    if found.get("type") == "directory":
        raise StorageError(directory_advice(path), path, start)
    size = None if found.get("type") == "link" else found.get("size")  # a listing has the size of the link itself
    return ObjectInfo(path, None if size is None else int(size), version_of(found))


def infos_of(prefix: str, found: Mapping[str, Mapping[str, Any]]) -> list[ObjectInfo]:
    """The objects of a listing whose URL begins with the prefix."""
    before, url, after = split_chain(prefix)
    files = [(full_url(url, name), item) for name, item in found.items() if item.get("type") != "directory"]
    return [info_of(before + path + after, item) for path, item in files if path.startswith(url)]


def lists_directories(filesystem: Any) -> bool:
    """Whether a filesystem is listed directory by directory; else its `find` lists all below a prefix at once.

    fsspec's own `find` leaves out what cannot be listed, and lists what no pattern can match.
    """
    if isinstance(filesystem, DirFileSystem):
        return lists_directories(filesystem.fs)
    if isinstance(filesystem, AsyncFileSystem):
        return type(filesystem)._find is AsyncFileSystem._find
    return type(filesystem).find is AbstractFileSystem.find


def in_directory(
    prefix: str, directory: str, found: Iterable[Mapping[str, Any]], glob: Glob | None
) -> tuple[list[ObjectInfo], list[str]]:
    """What a directory holds of a listing.

    Args:
        prefix: The URL prefix that is listed.
        directory: The directory, as the filesystem names it.
        found: Its entries, as `ls` gives them.
        glob: Which objects are wanted; None for all.

    Returns:
        The objects whose URL begins with the prefix, and the directories to list next.
    """
    before, url, after = split_chain(prefix)
    entries = {item["name"]: item for item in found}

    def enters(name: str) -> bool:
        below = f"{full_url(url, name.rstrip('/'))}/"
        if entries[name].get("type") != "directory" or name.rstrip("/") == directory.rstrip("/"):
            return False
        if below.startswith(url):
            return glob is None or glob.enters(before + below + after)
        return url.startswith(below)

    return infos_of(prefix, entries), list(filter(enters, entries))


def parent(prefix: str) -> str:
    """The directory that holds all that begins with the prefix.

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
    """A URL as a filesystem names it, with its path byte for byte.

    Filesystems take a URL apart as if it were one of the web: `?` and `#` end the path, and control characters go.

    Raises:
        StorageError: The filesystem takes its own names apart, too, and would mean another object.
    """
    scheme, colon, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    if not (colon and slash and _MANGLED.search(path)):
        return str(filesystem._strip_protocol(url))
    name = str(filesystem._strip_protocol(f"{scheme}://{host}/{_STAND_IN}")).replace(_STAND_IN, path)
    if filesystem._strip_protocol(name) != name:
        client = type(filesystem).__name__
        raise StorageError(f"{client} cannot name this object: leave out of its name what means something in URLs", url)
    return name


def root_of(url: str) -> str:
    """A URL without its path, from which options are read that do not belong to a path; a chain as it is.

    >>> root_of("sftp://user@host/run#1"), root_of("zip://a#b::file://c.zip")
    ('sftp://user@host/', 'zip://a#b::file://c.zip')
    """
    scheme, colon, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/" if colon and not split_chain(url).is_chain else url


def check_size(path: str, found: ObjectInfo, size: int) -> None:
    """Raises IntegrityError where the filesystem tells another size than was sent."""
    if found.size is not None and found.size != size:
        raise IntegrityError(f"{found.size:,} bytes arrived of the {size:,} that were sent: write it again", path)


def _translate(error: Exception, path: str, start: int | None, end: int | None) -> StorageError | TransientError:
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"there is no such object ({said}): check the URL", path, start, end)
    if isinstance(error, PermissionError):
        return PermissionDeniedError(f"access refused ({said}): check the credentials", path, start, end)
    if isinstance(error, NotImplementedError):
        return UnsupportedOperationError(f"this filesystem cannot do this ({said})", path, start, end)
    if isinstance(error, _MISTAKES):
        return StorageError(said, path, start, end)
    if isinstance(error, TimeoutError):
        return TransientError(Cause.TIMED_OUT, said)
    status = _status(error)
    if any(cls.__name__ == "ClientAuthenticationError" for cls in type(error).__mro__):  # azure-core's
        return TransientError(Cause.CREDENTIALS if status is None else Cause.REFUSED, said)
    if status is not None:
        return from_status(status, said, path, start, end)
    return TransientError(Cause.CONNECT if isinstance(error, ConnectionRefusedError) else Cause.BROKEN, said)


def _status(error: Exception) -> int | None:
    """The status of the HTTP answer below an exception: as azure-core, aiohttp and requests keep it."""
    holders = (error, getattr(error, "response", None))
    found = [getattr(holder, name, None) for holder in holders for name in ("status_code", "status")]
    return next((status for status in found if isinstance(status, int) and 400 <= status < 600), None)


translate_errors = error_translator((Exception,), _translate)
