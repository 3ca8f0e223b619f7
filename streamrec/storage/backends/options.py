"""How fsspec filesystems are made, so that they belong to the running loop and to nobody else.

fsspec caches instances without looking at the loop, and caches listings for ever; both are off here. A
user's own async instance belongs to another loop, so it is built again from its own arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.dircache import DirCache

from streamrec.storage.backends.chained_urls import is_url

__all__ = ["Source", "build", "full_url", "version_of"]

F = TypeVar("F", bound=AbstractFileSystem)


@dataclass(frozen=True, slots=True)
class Source:
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


def build(cls: type[F], source: Source, *, keep_class: bool = True, **overrides: Any) -> F:
    """Makes a filesystem for the running loop.

    Args:
        cls: Its class, where the user did not bring an instance; else the instance's own class is used.
        source: The user's options.
        keep_class: Whether a user's instance keeps its own class.
        **overrides: Arguments that take precedence over the user's.
    """
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
