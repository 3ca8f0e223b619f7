"""Which backend serves a URL or a user's own filesystem: it is imported on first use.

A backend is a module of `backends/` with a function `connect`, and a row of `store_kinds.py`. A
protocol without a module goes to `backends/fsspec/`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from streamrec.errors import MissingExtraError, StorageError, install_command
from streamrec.storage.backend import Backend
from streamrec.storage.faults import RetryPolicy
from streamrec.storage.options import COMMON_OPTIONS, ClientOptions, parameter_names
from streamrec.storage.urls import is_url, protocol_of, split_chain, suggest_scheme
from streamrec.store_kinds import OWN_PROTOCOLS, StoreKind, kind_of_filesystem, kind_of_protocol

if TYPE_CHECKING:
    import fsspec

Connect = Callable[[ClientOptions, RetryPolicy], Coroutine[Any, Any, Backend]]

ASYNC = "fsspec.backend:connect_async"
SYNC = "fsspec.backend:connect_sync"
"""The fallback backend, with the function that connects it."""

_WRAPPING: Final = {"fo", "fs", "target_protocol"}
"""Options of a filesystem that wraps another one; it is used through its sync interface."""


def load_backend(source: ClientOptions) -> Connect:
    """Returns the function that connects to the store of these options.

    Raises:
        MissingExtraError: The package of the store's client is not installed.
        StorageError: No filesystem has this protocol.
    """
    kind = kind_of_protocol(source.protocol)
    if source.filesystem is not None:
        name, kind = _own_backend(source.filesystem)
    else:
        name = kind.module or _generic_backend(source.url, source.options)
    module_name, _, function = name.partition(":")
    try:
        module = importlib.import_module(f"streamrec.storage.backends.{module_name}")
    except ImportError as error:
        if not kind.module or not kind.extra:
            raise
        raise MissingExtraError(
            f"{source.protocol}:// URLs need a package: {install_command(kind.extra)} ({error})"
        ) from error
    connect: Connect = getattr(module, function or "connect")
    return connect


def import_client(url: str, storage_options: Mapping[str, Any] | None, filesystem: Any) -> None:
    """Imports the client of a store ahead of its use; a missing package is an error only when it is
    used.
    """
    with suppress(StorageError, ImportError):
        load_backend(ClientOptions(protocol_of(url), storage_options or {}, filesystem, url))


def client_scope(url: str) -> str:
    """Returns the part of a URL that determines its client.

    One of our backends serves all buckets and hosts; a filesystem of fsspec belongs to one host, or
    to one archive.

    >>> client_scope("s3://b/k"), client_scope("ftp://host/dir/x"), client_scope("zip://dir/x::s3://b/c.zip")
    ('s3://', 'ftp://host', 'zip://::s3://b/c.zip')
    """
    if ":" not in url:
        return "file://"
    scheme, colon, _ = url.partition("://")
    if colon and kind_of_protocol(scheme.lower()).module:
        return f"{scheme.lower()}://"
    chain = split_chain(url)
    scheme, colon, rest = chain.url.partition("://")
    if not is_url(chain.url):
        colon = rest = ""
    if kind_of_protocol(scheme.lower()).module or chain.after:
        rest = ""
    return f"{chain.before}{scheme.lower() if colon else 'file'}://{rest.partition('/')[0]}{chain.after}"


def _generic_backend(url: str, options: Mapping[str, Any]) -> str:
    """Returns the fsspec backend, async or sync, for a URL without a backend of our own."""
    chain = split_chain(url)
    classes = [_find_class(protocol, url) for protocol in chain.protocols]
    if chain.is_chain:
        _check_options(url, chain.protocols, classes[0], options)
    return (
        ASYNC
        if classes[0].async_impl and not chain.is_chain and not _WRAPPING & set(options)
        else SYNC
    )


def _find_class(protocol: str, url: str) -> type[fsspec.AbstractFileSystem]:
    import fsspec

    try:
        return fsspec.get_filesystem_class(protocol)  # type: ignore[no-any-return]
    except ValueError as error:
        known = [*OWN_PROTOCOLS, *fsspec.available_protocols()]
        raise StorageError(
            f"no filesystem is known for {protocol}://{suggest_scheme(protocol, known)}", url
        ) from error
    except ImportError as error:
        kind = kind_of_protocol(protocol)
        advice = str(error)
        if kind.extra:
            advice = install_command(kind.extra)
        elif kind.package:
            advice = f"pip install {kind.package}"
        # fsspec's own words may name a package that does not exist (gdrive_fs)
        cause = error.__cause__ or error
        raise MissingExtraError(f"{protocol}:// URLs need a package: {advice} ({cause})") from error


def _check_options(
    url: str,
    protocols: list[str],
    outermost: type[fsspec.AbstractFileSystem],
    options: Mapping[str, Any],
) -> None:
    """Refuses options of a chain's inner filesystems that are not under their protocol: fsspec
    would ignore them.
    """
    known = {*parameter_names(outermost), *COMMON_OPTIONS, *protocols}
    for name in options:
        if name not in known:
            raise StorageError(
                f"storage_options has {name!r}, which {protocols[0]} does not know: in a chain, "
                "options of another "
                f"filesystem go under its protocol: storage_options={{{protocols[-1]!r}: "
                f"{{{name!r}: ...}}}}",
                url,
            )


def _own_backend(filesystem: fsspec.AbstractFileSystem) -> tuple[str, StoreKind]:
    """Returns the backend for a user's own filesystem, and its kind.

    A sync instance of an async class that wraps another filesystem is used through its sync
    interface, because the wrapped one is bound to fsspec's own loop.
    """
    import fsspec

    for cls in type(filesystem).__mro__:
        own = kind_of_filesystem(cls.__module__)
        if own is not None:
            return own.module, own
    arguments = (*filesystem.storage_args, *filesystem.storage_options.values())
    wraps = any(isinstance(value, fsspec.AbstractFileSystem) for value in arguments)
    is_async = filesystem.async_impl and (filesystem.asynchronous or not wraps)
    return (ASYNC if is_async else SYNC), kind_of_protocol("")


def locate(path: str | os.PathLike[str], filesystem: fsspec.AbstractFileSystem | None) -> str:
    """Returns a path as its backend takes it: without a scheme, it is a path in the user's own
    filesystem, if any.
    """
    path = os.fspath(path)
    if filesystem is None or is_url(path):
        return path
    _, kind = _own_backend(filesystem)
    return f"{kind.name}://{path.lstrip('/')}" if kind.has_buckets else path
