"""Storages: one Storage per protocol, created on first use in the running loop.

A backend is a module of `backends/` with a function `connect`. It is imported on first use, with
its client package. A protocol that is not in the table goes to `backends/fsspec/`.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import astuple
from difflib import get_close_matches
from functools import partial
from itertools import starmap
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict

from streamrec.arguments import describe_value
from streamrec.display import mask_cause
from streamrec.errors import (
    ClosedError,
    MissingExtraError,
    StorageError,
    StreamrecError,
    install_command,
)
from streamrec.storage.backend import Backend
from streamrec.storage.base import Storage
from streamrec.storage.clients import borrow, make_key
from streamrec.storage.connections import MAX_CONNECTIONS, START, Connections
from streamrec.storage.faults import RetryPolicy
from streamrec.storage.hedging import Hedging
from streamrec.storage.identity import Identity, identities
from streamrec.storage.knee_search import KneeSearch
from streamrec.storage.options import COMMON_OPTIONS, ClientOptions, parameter_names
from streamrec.storage.range_room import BUFFER_BYTES
from streamrec.storage.retry import attempt
from streamrec.storage.statistics import Statistics, log_statistics, run_statistics
from streamrec.storage.tasks import finish, running_loop
from streamrec.storage.traffic import Traffic
from streamrec.storage.urls import NATIVE, is_url, protocol_of, split_chain, suggest_scheme

if TYPE_CHECKING:
    import fsspec

Connect = Callable[[ClientOptions, RetryPolicy], Coroutine[Any, Any, Backend]]

_FAMILIES = {
    "s3fs.core": "s3",
    "gcsfs.core": "gcs",
    "fsspec.implementations.http": "http",
    "fsspec.implementations.local": "local",
    "fsspec.implementations.memory": "memory",
}
"""The backend of a user's own filesystem, by the module of its class or of a base class."""

_SCHEMES = {"s3": "s3", "gcs": "gs", "memory": "memory"}
"""The schemes of backends that take URLs only."""

ASYNC = "fsspec.backend:connect_async"
SYNC = "fsspec.backend:connect_sync"
"""The fallback backend, with the function that connects it."""

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
    "gdrive": "gdrive-fsspec",
    "git": "pygit2",
    "hf": "huggingface_hub",
    "lakefs": "lakefs-spec",
    "libarchive": "libarchive-c",
    "oss": "ossfs",
    "root": "fsspec-xrootd",
    "smb": "smbprotocol",
    "wandb": "wandbfs",
}
"""The packages to install for protocols that only fsspec knows."""

_WRAPPING: Final = {"fo", "fs", "target_protocol"}
"""Options of a filesystem that wraps another one; it is used through its sync interface."""


class StoreOptions(TypedDict, total=False):
    """How to reach stores: keyword arguments of everything that reads or writes URLs.

    Attributes:
        storage_options: Keyword arguments of the fsspec filesystem's class, as in pandas: `key`,
            `secret`, `endpoint_url`, `token`, ... None: none.
        filesystem: Your own fsspec filesystem, for all URLs, instead of one made from
            `storage_options`. An async one is created again from its arguments, in the running
            loop; any other is used as it is. A path without a scheme is a path in it.
        retry: When requests are retried and when to give up; see RetryPolicy. None: its defaults.
    """

    storage_options: Mapping[str, Any] | None
    filesystem: fsspec.AbstractFileSystem | None
    retry: RetryPolicy | None


class Storages:
    """The stores of one run: `async with Storages(options) as storages: await storages.at(url)`.

    Create it in the running loop; the exit closes it. Do not share it between loops, threads or
    processes.

    Args:
        storage_options, filesystem, retry: See StoreOptions.
        buffer_bytes: How many bytes all streams together may read ahead of their consumers.
        max_connections: How many requests for ranges of large objects may be in progress, in
            addition to one for each stream.
        report_interval: Seconds between two reports in the log, if its level is INFO; see
            `statistics`.

    Attributes:
        connections: The connection budget that all streams share.
        statistics: The counters; `statistics.snapshot()` at any time, from any thread.
    """

    statistics: Statistics

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        *,
        filesystem: fsspec.AbstractFileSystem | None = None,
        retry: RetryPolicy | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        max_connections: int = MAX_CONNECTIONS,
        report_interval: float = 60.0,
    ) -> None:
        self._retry = check_source(storage_options, filesystem, retry)
        self.connections = Connections(buffer_bytes, KneeSearch(START, max_connections))
        self.storage_options = dict(storage_options or {})
        self._filesystem = filesystem
        self.statistics = run_statistics.get() or Statistics()
        self._report_interval = report_interval
        self._timer: asyncio.TimerHandle
        self._stack = AsyncExitStack()
        self._storages: dict[str, Storage] = {}
        self._lock = asyncio.Lock()
        self._closed = False

    async def at(self, url: str) -> Storage:
        """Returns the Storage for a URL: the same one for all URLs that one client serves."""
        _check_name(url)
        scope = client_scope(url) if self._filesystem is None else ""
        async with self._lock:
            if self._closed:
                raise ClosedError(f"{url}: the storages are closed; create a new Storages")
            if scope not in self._storages:
                self._storages[scope] = await self._make(scope, url)
            return self._storages[scope]

    async def identities(self, urls: Iterable[str]) -> list[frozenset[Identity]]:
        located = [(url, (await self.at(url)).endpoint) for url in urls]
        return await asyncio.to_thread(lambda: list(starmap(identities, located)))

    async def check_not_input(self, url: str, inputs: Iterable[str]) -> None:
        """Refuses an output that is one of the inputs, in any spelling."""
        [output] = await self.identities([url])
        if any(output & each for each in await self.identities(inputs)):
            raise StorageError(
                "this object is read, and would be overwritten: choose another name", url
            )

    async def __aenter__(self) -> Self:
        self._timer = running_loop().call_later(self._report_interval, self._report)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        self._timer.cancel()
        log_statistics(self.statistics, "at the end")
        await finish(self._stack.aclose())  # even in a cancelled scope

    def _report(self) -> None:
        """Logs the statistics, and again after the interval."""
        log_statistics(self.statistics, "so far")
        self._timer = asyncio.get_running_loop().call_later(self._report_interval, self._report)

    async def _make(self, scope: str, url: str) -> Storage:
        protocol = protocol_of(url)
        source = ClientOptions(protocol, self.storage_options, self._filesystem, url)
        connect = await asyncio.to_thread(load_backend, source)  # an import takes up to a second
        key, kept = make_key(
            connect.__module__, scope, self.storage_options, self._filesystem, astuple(self._retry)
        )
        try:
            connect_shared = partial(borrow, key, kept, partial(connect, source, self._retry))
            backend, release = await attempt(self._retry, url, connect_shared, "connecting")
        except StreamrecError:
            raise
        except Exception as error:
            cause = mask_cause(error, self.storage_options)
            raise StorageError(
                f"no client can be made from these storage options ({type(error).__name__}: "
                f"{cause}): check their "
                "names and values, and the environment variables of the client",
                url,
            ) from cause
        remote = backend.remote  # a second request for a slow local file would only be slower
        hedging, endpoint = (Hedging(self._retry), backend.endpoint) if remote else (None, None)
        traffic = Traffic(self.statistics, protocol, hedging, endpoint, backend.fast_paths)
        storage = Storage(backend, self._retry, self.connections, traffic, release)
        self._stack.push_async_callback(storage.aclose)
        return storage


def _check_name(url: str) -> None:
    """Refuses an empty name, a NUL, and bytes that are not UTF-8, which only names of local files
    may contain.
    """
    if not url:
        raise StorageError("the name of a file is '': give a URL or path")
    if url.isascii() and "\0" not in url:
        return
    try:
        data = os.fsencode(url) if protocol_of(url) in ("file", "local") else url.encode()
    except UnicodeEncodeError as error:
        raise StorageError(
            f"this name cannot be written as UTF-8 ({error.reason}): choose another one", url
        ) from error
    if b"\0" in data:
        raise StorageError(
            "this name holds a NUL character, which no store allows: choose another one", url
        )


def check_keywords(
    caller: str, store: Mapping[str, Any], instead: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Refuses keyword arguments that are not StoreOptions, as Python does; `instead` has advice for
    names of other functions.
    """
    for name in store:
        if name not in StoreOptions.__annotations__:
            near = get_close_matches(name, [*StoreOptions.__annotations__, *instead], 1)
            advice = f": {instead.get(near[0], f'did you mean {near[0]}=?')}" if near else ""
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}{advice}")


def check_source(storage_options: object, filesystem: object, retry: object = None) -> RetryPolicy:
    """Checks the values of `StoreOptions`, and returns the retry policy or the default one."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise TypeError(
            f"retry is {describe_value(retry)}: it must be a RetryPolicy, such as "
            "RetryPolicy(attempts=2)"
        )
    if storage_options is not None and not isinstance(
        storage_options, Mapping
    ):  # its values may be secrets
        found = describe_value(storage_options, secret=True)
        raise TypeError(
            f"storage_options is {found}: it must be a dict of arguments of the fsspec filesystem"
        )
    if filesystem is not None:
        import fsspec

        if not isinstance(filesystem, fsspec.AbstractFileSystem):
            found = describe_value(filesystem, secret=True)
            raise TypeError(f"filesystem is {found}: it must be an fsspec filesystem")
        if storage_options:
            raise ValueError(
                "filesystem= and storage_options= exclude each other: give the options to the "
                "filesystem when you "
                "make it"
            )
    return retry or RetryPolicy()


def load_backend(source: ClientOptions) -> Connect:
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
            f"{protocol}:// URLs need a package: {install_command(extra)} ({error})"
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
    if colon and scheme.lower() in NATIVE:
        return f"{scheme.lower()}://"
    chain = split_chain(url)
    scheme, colon, rest = chain.url.partition("://")
    if not is_url(chain.url):
        colon = rest = ""
    if scheme.lower() in NATIVE or chain.after:
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
        known = [*NATIVE, *fsspec.available_protocols()]
        raise StorageError(
            f"no filesystem is known for {protocol}://{suggest_scheme(protocol, known)}", url
        ) from error
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        package = _PACKAGES.get(protocol)
        advice = f"pip install {package}" if package else str(error)
        if extra:
            advice = install_command(extra)
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


def _family(filesystem: fsspec.AbstractFileSystem) -> str:
    """Returns the backend for a user's own filesystem.

    A sync instance of an async class that wraps another filesystem is used through its sync
    interface, because the wrapped one is bound to fsspec's own loop.
    """
    import fsspec

    for cls in type(filesystem).__mro__:
        if cls.__module__ in _FAMILIES:
            return _FAMILIES[cls.__module__]
    arguments = (*filesystem.storage_args, *filesystem.storage_options.values())
    wraps = any(isinstance(value, fsspec.AbstractFileSystem) for value in arguments)
    return ASYNC if filesystem.async_impl and (filesystem.asynchronous or not wraps) else SYNC


def locate(path: str | os.PathLike[str], filesystem: fsspec.AbstractFileSystem | None) -> str:
    """Returns a path as its backend takes it: without a scheme, it is a path in the user's own
    filesystem, if any.
    """
    path = os.fspath(path)
    if filesystem is None or is_url(path):
        return path
    scheme = _SCHEMES.get(_family(filesystem))
    return path if scheme is None else f"{scheme}://{path.lstrip('/')}"
