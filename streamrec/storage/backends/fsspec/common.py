"""What the two backends for any other fsspec filesystem share: listings, versions, foreign exceptions.

fsspec promises little about errors, so the rule is: what Python has a name for is final under that name,
mistakes in calls (TypeError, ValueError, ...) are final, and the rest may pass and is tried again.

Most filesystems cannot pin a version. It is compared when a body is opened, and again with its last bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamrec.errors import (
    IntegrityError,
    NotFoundError,
    PermissionDeniedError,
    StorageError,
    UnsupportedOperationError,
)
from streamrec.storage.backend import ObjectInfo
from streamrec.storage.backends.options import full_url, version_of
from streamrec.storage.backends.urls import is_temporary
from streamrec.storage.resilience.faults import Cause, TransientError, changed, seam_of

__all__ = ["check_overwrite", "check_size", "check_version", "info_of", "infos_of", "parent", "seam"]

_MISTAKES = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ImportError,
    IsADirectoryError,
    NotADirectoryError,
    FileExistsError,
)


def info_of(path: str, found: Mapping[str, Any], start: int | None = None) -> ObjectInfo:
    """The info that fsspec found for one path.

    Raises:
        StorageError: It is a directory.
    """
    if found.get("type") == "directory":
        raise StorageError("this is a directory where an object is wanted: add a name", path, start)
    size = found.get("size")
    return ObjectInfo(path, None if size is None else int(size), version_of(found))


def infos_of(prefix: str, found: Mapping[str, Mapping[str, Any]]) -> list[ObjectInfo]:
    """The objects of a listing whose URL begins with the prefix."""
    infos = [info_of(full_url(prefix, name), item) for name, item in found.items() if item.get("type") != "directory"]
    return [info for info in infos if info.path.startswith(prefix) and not is_temporary(info.path)]


def parent(prefix: str) -> str:
    """The directory that holds all that begins with the prefix.

    >>> parent("foo://host/dir/train-"), parent("foo://host"), parent("train-"), parent("/train-")
    ('foo://host/dir', 'foo://host', '', '/')
    """
    scheme, colon, rest = prefix.rpartition("://")
    if not colon:
        return rest.rpartition("/")[0] or rest[: rest.find("/") + 1]
    return scheme + colon + (rest.rpartition("/")[0] or rest)


def check_version(info: ObjectInfo, version: str | None, start: int, end: int | None) -> None:
    """Raises ObjectChangedError where both versions are known and differ."""
    if version is not None and info.version is not None and info.version != version:
        raise changed(info.path, start, end)


def check_overwrite(path: str, overwrite: bool) -> None:
    """No verb of fsspec creates and never replaces, so to promise it would be a lie."""
    if not overwrite:
        raise UnsupportedOperationError(
            "fsspec has no way to create an object only where there is none: pass overwrite=True, and see to it"
            " that nobody else writes this name",
            path,
        )


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
    return TransientError(Cause.CONNECT if isinstance(error, ConnectionRefusedError) else Cause.BROKEN, said)


seam = seam_of((Exception,), _translate)
