"""Storage options: makes fsspec filesystems from them, and checks their names.

A filesystem that is made here belongs to the running loop alone. fsspec caches instances regardless
of the loop, and caches listings permanently; both caches are off. A user's async filesystem belongs
to another loop, so a new one is built from its arguments. An unknown option is an error at once,
with the most similar known name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from streamrec.display import join_names
from streamrec.errors import StorageError
from streamrec.storage.urls import is_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

F = TypeVar("F", bound="AbstractFileSystem")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The arguments of a backend's `connect`.

    `options` are the user's storage options, `url` is the first URL that needs the backend, for
    errors.
    """

    protocol: str
    options: Mapping[str, Any] = field(repr=False)
    filesystem: AbstractFileSystem | None = None
    url: str = ""

    def option(self, name: str, default: Any = None) -> Any:
        """Returns an option from `options` or from the user's filesystem."""
        inherited = {} if self.filesystem is None else self.filesystem.storage_options
        return self.options.get(name, inherited.get(name, default))


def build(cls: type[F], source: ClientOptions, *, keep_class: bool = True, **overrides: Any) -> F:
    """Makes a filesystem for the running loop, from `cls` or, with `keep_class`, from the class of
    the user's one.
    """
    import fsspec.dircache

    theirs = source.filesystem
    args: Iterable[Any] = ()
    kwargs: dict[str, Any] = {}
    if theirs is not None:
        args = theirs.storage_args
        kwargs = dict(theirs.storage_options)
        cls = type(theirs) if keep_class else cls
    kwargs |= {**source.options, **overrides, "asynchronous": True, "skip_instance_cache": True}
    kwargs.pop("loop", None)
    filesystem: F = cls(*args, **kwargs)
    if isinstance(filesystem.dircache, fsspec.dircache.DirCache):
        filesystem.dircache.use_listings_cache = (
            False  # not every class takes this as an argument (obstore's)
        )
    return filesystem


_VERSION_KEYS = (
    "ETag",
    "etag",
    "e_tag",
    "generation",
    "version_id",
    "mtime",
    "last_modified",
    "LastModified",
    "modified",
    "modify",
    "CRC",
)


def version_of(info: Mapping[str, Any]) -> str | None:
    """Returns the version in an fsspec info dict: the first of the usual keys that has a value, or
    None.

    >>> version_of({"size": 3, "mtime": 1.5})
    'mtime=1.5'
    """
    for key in _VERSION_KEYS:
        if info.get(key) is not None:
            return f"{key}={info[key]}"
    return None


def modified_of(info: Mapping[str, Any]) -> datetime | float | str | None:
    """Returns the time of modification in an fsspec info dict, or None."""
    for key in ("mtime", "last_modified", "LastModified", "modified", "updated"):
        if isinstance(value := info.get(key), datetime | float | int | str):
            return value
    return None


def full_url(path: str, name: str) -> str:
    """Returns the URL for a name that a filesystem listed, in the style of the listed path.

    >>> full_url("sftp://host/data/a", "/data/a-1"), full_url("/data/a", "/data/a-1")
    ('sftp://host/data/a-1', '/data/a-1')
    """
    scheme, _, rest = path.partition("://")
    if not is_url(path) or is_url(name):
        return name
    host = rest.partition("/")[0]
    local = name.startswith("/") and host and not name.startswith(f"/{host}/")
    return (
        f"{scheme}://{host}{name}" if local else f"{scheme}://{name.lstrip('/') if host else name}"
    )


COMMON_OPTIONS = frozenset(
    {
        "asynchronous",
        "batch_size",
        "listings_expiry_time",
        "loop",
        "max_paths",
        "skip_instance_cache",
        "use_listings_cache",
    }
)


def parameter_names(*callables: Callable[..., Any]) -> set[str]:
    """Returns the names of all parameters of some callables; for classes, those of their bases,
    too, up to fsspec's.
    """
    from fsspec import AbstractFileSystem

    names: set[str] = set()
    for each in callables:
        parts = [each]
        if isinstance(each, type):
            parts = [
                cls.__init__  # type: ignore[misc]
                for cls in each.__mro__
                if cls not in (object, AbstractFileSystem)
            ]
        for part in parts:
            names.update(
                name
                for name, parameter in inspect.signature(part).parameters.items()
                if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
                and name != "self"
            )
    return names


_OTHER_NAMES = {
    **dict.fromkeys(("access_key", "access_key_id", "aws_access_key_id"), "key="),
    **dict.fromkeys(("aws_secret_access_key", "secret_access_key", "secret_key"), "secret="),
    **dict.fromkeys(("aws_session_token", "session_token"), "token="),
    **dict.fromkeys(("aws_region", "region", "region_name"), "client_kwargs={'region_name': ...}"),
    **dict.fromkeys(("aws_profile", "profile_name"), "profile="),
    **dict.fromkeys(("credentials", "keyfile", "service_account"), "token="),
}
"""The names in s3fs and gcsfs for options of boto3, other clients and google-cloud-storage."""


def check_names(url: str, place: str, options: Any, known: Iterable[str]) -> None:
    """Refuses options that the client does not know; `place` is "storage_options", or an option
    that is a dict.
    """
    if not isinstance(options, Mapping):
        return
    names = sorted(known)
    for name in options:
        if name not in names:
            alternative = _OTHER_NAMES.get(name, "")
            is_known = alternative.partition("=")[0] in names
            advice = f": write {alternative}" if is_known else suggest_name(str(name), names)
            raise StorageError(f"{place} has {name!r}, which the client does not know{advice}", url)


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Returns the end of a message with the most similar known name, or all known names if none is
    similar.
    """
    names = sorted(known)
    close = get_close_matches(name, names, 1, 0.5)
    return f": did you mean {close[0]!r}?" if close else f"; it knows {join_names(names, 200)}"


def check_endpoint(url: str, place: str, endpoint: Any) -> None:
    """Refuses a server without a scheme, which clients misunderstand in different ways."""
    if endpoint and "://" not in str(endpoint):
        raise StorageError(
            f"{place} has no scheme: write 'http://{endpoint}' or 'https://{endpoint}'", url
        )
