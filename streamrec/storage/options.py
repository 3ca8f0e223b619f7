"""Storage options: how fsspec filesystems are made from them, and which names are allowed.

A filesystem that is made here belongs to the running loop alone. fsspec caches instances without looking at the loop,
and caches listings permanently; both are off. A user's own async instance belongs to another loop, so it is built
again from its own arguments. A name that a client does not know is an error at once, with the nearest that it knows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.dircache import DirCache

from streamrec.display import join_names
from streamrec.errors import StorageError
from streamrec.storage.urls import is_url

__all__ = [
    "OF_EVERY_FILESYSTEM",
    "ClientOptions",
    "build",
    "check_endpoint",
    "check_names",
    "full_url",
    "nearest",
    "parameters_of",
    "version_of",
]

F = TypeVar("F", bound=AbstractFileSystem)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What a backend is made from.

    Attributes:
        protocol: The protocol of the first URL ("s3").
        options: The user's storage options: keyword arguments of the filesystem's class.
        filesystem: The user's own filesystem, or None.
        url: The URL that was asked for first, for errors.
    """

    protocol: str
    options: Mapping[str, Any] = field(repr=False)
    filesystem: AbstractFileSystem | None = None
    url: str = ""

    def option(self, name: str, default: Any = None) -> Any:
        """One option, whether it came as such or with the user's filesystem."""
        given = {} if self.filesystem is None else self.filesystem.storage_options
        return self.options.get(name, given.get(name, default))


def build(cls: type[F], source: ClientOptions, *, keep_class: bool = True, **overrides: Any) -> F:
    """Makes a filesystem for the running loop: of the class of the user's instance, if there is one and it is kept."""
    theirs = source.filesystem
    made = type(theirs) if theirs is not None and keep_class else cls
    args = () if theirs is None else theirs.storage_args
    kwargs = {} if theirs is None else dict(theirs.storage_options)
    kwargs.update(source.options)
    kwargs.update(overrides)
    kwargs.pop("loop", None)
    kwargs.update(asynchronous=True, skip_instance_cache=True)
    filesystem: F = made(*args, **kwargs)
    if isinstance(filesystem.dircache, DirCache):
        filesystem.dircache.use_listings_cache = False  # not every class takes this as an argument (obstore's)
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
    """The version in an fsspec info dict: the first of the usual keys that has a value, or None.

    >>> version_of({"size": 3, "mtime": 1.5})
    'mtime=1.5'
    """
    for key in _VERSION_KEYS:
        if info.get(key) is not None:
            return f"{key}={info[key]}"
    return None


def full_url(path: str, name: str) -> str:
    """A name that a filesystem listed, as a URL in the style of the path that was asked for.

    >>> full_url("sftp://host/data/a", "/data/a-1"), full_url("/data/a", "/data/a-1")
    ('sftp://host/data/a-1', '/data/a-1')
    """
    scheme, _, rest = path.partition("://")
    if not is_url(path) or is_url(name):
        return name
    host = rest.partition("/")[0]
    local = name.startswith("/") and host and not name.startswith(f"/{host}/")
    return f"{scheme}://{host}{name}" if local else f"{scheme}://{name.lstrip('/') if host else name}"


OF_EVERY_FILESYSTEM = frozenset(
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


def parameters_of(*callables: Callable[..., Any]) -> set[str]:
    """The names of all arguments of some callables; of classes, those of the classes above too, up to fsspec's."""
    names: set[str] = set()
    for each in callables:
        parts = [each]
        if isinstance(each, type):
            parts = [cls.__init__ for cls in each.__mro__ if cls not in (object, AbstractFileSystem)]  # type: ignore[misc]
        for part in parts:
            names.update(
                name
                for name, parameter in inspect.signature(part).parameters.items()
                if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) and name != "self"
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
"""What s3fs and gcsfs call the options of boto3, of other clients and of google-cloud-storage."""


def check_names(url: str, place: str, options: Any, known: Iterable[str]) -> None:
    """Refuses options that the client does not know, in "storage_options" or in an option that is a dict itself."""
    if not isinstance(options, Mapping):
        return
    names = sorted(known)
    for name in options:
        if name not in names:
            usual = _OTHER_NAMES.get(name, "")
            advice = f": write {usual}" if usual.partition("=")[0] in names else nearest(str(name), names)
            raise StorageError(f"{place} has {name!r}, which the client does not know{advice}", url)


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that was meant, for the end of a message; where none is near, all of them."""
    names = sorted(known)
    close = get_close_matches(name, names, 1, 0.5)
    return f": did you mean {close[0]!r}?" if close else f"; it knows {join_names(names, 200)}"


def check_endpoint(url: str, place: str, endpoint: Any) -> None:
    """Refuses an endpoint without a scheme."""
    if endpoint and "://" not in str(endpoint):
        raise StorageError(f"{place} has no scheme: write 'http://{endpoint}' or 'https://{endpoint}'", url)
