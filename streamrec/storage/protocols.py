"""Protocols: which backend serves a URL or a user's own filesystem, and what must be installed.

A backend is a module of `backends/` with a function `connect`. It is imported when it is first needed, with the client
package below it. A protocol that is not in the table goes to `backends/fsspec/`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import fsspec

from streamrec.errors import MissingExtraError, StorageError
from streamrec.storage.backend import Backend
from streamrec.storage.options import OF_EVERY_FILESYSTEM, ClientOptions, nearest, parameters_of
from streamrec.storage.retry import RetryPolicy
from streamrec.storage.urls import NATIVE, is_url, split_chain

__all__ = ["load_backend", "located", "place_of"]

Connect = Callable[[ClientOptions, RetryPolicy], Coroutine[Any, Any, Backend]]

_FAMILIES = {
    "s3fs.core": "s3",
    "gcsfs.core": "gcs",
    "fsspec.implementations.http": "http",
    "fsspec.implementations.local": "local",
    "fsspec.implementations.memory": "memory",
}
"""Which backend a user's own filesystem goes to, by the module of its class or of a class above."""

_SCHEMES = {"s3": "s3", "gcs": "gs", "memory": "memory"}
"""Families whose backends take URLs only."""

ASYNC, SYNC = "fsspec.backend:connect_async", "fsspec.backend:connect_sync"
"""The backend for whatever has none of its own, and which function connects it."""

_EXTRAS: Final = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("http", "https"), "http"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "azure"),
}

_PACKAGES: Final = {
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    **dict.fromkeys(("webhdfs", "webHDFS", "github", "jupyter", "jlab", "dbfs"), "requests"),
    **dict.fromkeys(("hdfs", "arrow_hdfs"), "pyarrow"),
    **dict.fromkeys(("oci", "ocilake"), "ocifs"),
    "asynclocal": "morefs",
    "box": "boxfs",
    "dask": "dask distributed",
    "dropbox": "dropboxdrivefs",
    "gdrive": "gdrive_fs",
    "git": "pygit2",
    "hf": "huggingface_hub",
    "lakefs": "lakefs-spec",
    "libarchive": "libarchive-c",
    "oss": "ossfs",
    "root": "fsspec-xrootd",
    "smb": "smbprotocol",
    "wandb": "wandbfs",
}
"""What to install for protocols that only fsspec knows."""

_WRAPPING: Final = {"fo", "fs", "target_protocol"}
"""Options that make a filesystem one over another, which is used through its sync face."""


def load_backend(source: ClientOptions) -> Connect:
    """Imports the backend, and with it the client package."""
    protocol = source.protocol
    if source.filesystem is not None:
        name = _family(source.filesystem)
    else:
        name = NATIVE.get(protocol) or _generic_backend(source.url, source.options)
    try:
        module_name, _, function = name.partition(":")
        module = importlib.import_module(f"streamrec.storage.backends.{module_name}")
    except ImportError as error:
        extra = _EXTRAS.get(name)
        if extra is None:
            raise
        raise MissingExtraError(
            f"{protocol}:// URLs need a package: pip install 'streamrec[{extra}]' ({error})"
        ) from error
    connect: Connect = getattr(module, function or "connect")
    return connect


def place_of(url: str) -> str:
    """What of a URL decides which client serves it.

    A backend of our own serves all buckets and hosts; a filesystem of fsspec belongs to one host, or to one archive.

    >>> place_of("s3://b/k"), place_of("ftp://host/dir/x"), place_of("zip://dir/x::s3://b/c.zip")
    ('s3://', 'ftp://host', 'zip://::s3://b/c.zip')
    """
    if ":" not in url:
        return "file://"
    chain = split_chain(url)
    scheme, colon, rest = chain.url.partition("://")
    if not is_url(chain.url):
        colon = rest = ""
    if scheme.lower() in NATIVE or chain.after:
        rest = ""
    return f"{chain.before}{scheme.lower() if colon else 'file'}://{rest.partition('/')[0]}{chain.after}"


def _generic_backend(url: str, options: Mapping[str, Any]) -> str:
    """How a URL that only fsspec knows is connected.

    Raises:
        MissingExtraError: A package is not installed; the message holds what to type.
        StorageError: A protocol that fsspec does not know, or an option of another filesystem of a chain.
    """
    chain = split_chain(url)
    classes = [_class_of(protocol, url) for protocol in chain.protocols]
    if chain.linked:
        _check_options(url, chain.protocols, classes[0], options)
    return ASYNC if classes[0].async_impl and not chain.linked and not _WRAPPING & set(options) else SYNC


def _class_of(protocol: str, url: str) -> type[fsspec.AbstractFileSystem]:
    try:
        found: type[fsspec.AbstractFileSystem] = fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        known = {*NATIVE, *fsspec.available_protocols()}
        raise StorageError(f"no filesystem is known for {protocol}://{nearest(protocol, known)}", url) from error
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        package = f"'streamrec[{extra}]'" if extra else _PACKAGES.get(protocol)
        advice = f"pip install {package}" if package else str(error)
        raise MissingExtraError(f"{protocol}:// URLs need a package: {advice} ({error})") from error
    return found


def _check_options(
    url: str, protocols: list[str], outermost: type[fsspec.AbstractFileSystem], options: Mapping[str, Any]
) -> None:
    """Options of the inner filesystems of a chain belong under their protocols; else they would be ignored."""
    known = {*parameters_of(outermost), *OF_EVERY_FILESYSTEM, *protocols}
    for name in options:
        if name not in known:
            raise StorageError(
                f"storage_options has {name!r}, which {protocols[0]} does not know: in a chain, options of another "
                f"filesystem go under its protocol: storage_options={{{protocols[-1]!r}: {{{name!r}: ...}}}}",
                url,
            )


def _family(filesystem: fsspec.AbstractFileSystem) -> str:
    """Which backend serves a user's own filesystem.

    A sync instance of an async class that wraps another is used through its sync face, because what it wraps
    is bound to fsspec's own loop.
    """
    for cls in type(filesystem).__mro__:
        if cls.__module__ in _FAMILIES:
            return _FAMILIES[cls.__module__]
    arguments = (*filesystem.storage_args, *filesystem.storage_options.values())
    wraps = any(isinstance(value, fsspec.AbstractFileSystem) for value in arguments)
    return ASYNC if filesystem.async_impl and (filesystem.asynchronous or not wraps) else SYNC


def located(path: str, filesystem: fsspec.AbstractFileSystem | None) -> str:
    """A path as its backend takes it: one without a scheme is a path of the user's own filesystem, if there is one."""
    if filesystem is None or is_url(path):
        return path
    scheme = _SCHEMES.get(_family(filesystem))
    return path if scheme is None else f"{scheme}://{path.lstrip('/')}"
