"""Workarounds for defects of some fsspec filesystems.

- Caches of whole files keep a partial copy when a download breaks off, and use it as the file: this
  module removes it.
- The filesystem of web servers takes any status below 400 for success, so that a 204 is an empty
  file: this module refuses it.
- FTP and SFTP filesystems have one connection to their server, and never renew it: this module
  does.
- Async filesystems have no way to close them: this module closes the clients that they are known to
  have. adlfs also retries by itself, which this module switches off.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ftplib import FTP, all_errors
from functools import partial
from inspect import isawaitable
from typing import Any, Final

from fsspec.implementations.cached import CachingFileSystem, WholeFileCacheFileSystem

from streamrec.storage.arrivals import describe_answer
from streamrec.storage.faults import Cause, TransientError

SFTP: Final = {"sftp", "ssh"}

CLIENTS: Final = ("_session", "service_client", "credential")
"""Attributes of async filesystems that must be closed: of most of them, of adlfs, of adlfs."""


def below(filesystem: Any) -> Any:
    """Returns the filesystem that a cache wraps; any other filesystem as it is."""
    return filesystem.fs if isinstance(filesystem, CachingFileSystem) else filesystem


@contextmanager
def whole(filesystem: Any, name: str, size: int | None) -> Iterator[None]:
    """Removes an incomplete copy after a simplecache or a filecache opened a file, so that it is
    fetched again.

    The copy is a TransientError if it has another size than the file has in the store.
    """
    if not isinstance(
        filesystem, WholeFileCacheFileSystem
    ):  # whose `protocol` an old fsspec takes from what it caches
        yield
        return
    try:
        yield
        copy = _find_copy(filesystem, name)
        if size is not None and copy is not None and (copied := os.path.getsize(copy)) != size:
            raise TransientError(
                Cause.BROKEN, f"the copy in the cache has {copied:,} bytes of {size:,}"
            )
    except BaseException:
        copy = _find_copy(filesystem, name)
        if copy is not None and copy.startswith(filesystem.storage[-1]):
            with suppress(OSError):
                os.unlink(copy)
        raise


def _find_copy(filesystem: Any, name: str) -> str | None:
    """Returns the path of a file's copy in a cache, or None."""
    copy = filesystem._check_file(filesystem._strip_protocol(name))
    return (copy[1] if isinstance(copy, tuple) else copy) or None


def mend(filesystem: Any, *, ours: bool) -> None:
    """Makes an FTP filesystem close its old connection when it opens a new one, and one of web
    servers, in a chain of ours, refuse answers without the bytes.

    fsspec shares what a cache wraps with the whole process: with `ours`, it gets an instance of its
    own, so that another user of the same server neither has our check nor takes it away.
    """
    if _is_ftp(filesystem):
        filesystem._connect = partial(_reconnect, weakref.ref(filesystem))
    inner = below(filesystem)
    if inner is filesystem or not _is_web(inner):
        return
    if ours:
        options = {**inner.storage_options, "skip_instance_cache": True}
        inner = filesystem.fs = type(inner)(*inner.storage_args, **options)
    if inner._session is None:
        inner.client_kwargs = {"raise_for_status": _refuse_without_bytes, **inner.client_kwargs}


async def _refuse_without_bytes(response: Any) -> None:
    """Refuses a 204, 202 or 205, which fsspec takes for an empty file; failures are left to it."""
    if 200 < response.status < 300 and response.status != 206:
        said = describe_answer(response.status, response.headers, b"", response.url.authority)
        raise TransientError(Cause.WRONG_ANSWER, f"{said} where a 200 or a 206 has the bytes")


def connect_again(filesystem: Any) -> None:
    """Reconnects an FTP or SFTP filesystem whose connection failed or was closed, as by FTP servers
    after minutes.
    """
    if _is_ftp(filesystem):
        try:
            filesystem.ftp.voidcmd("NOOP")
        except all_errors:
            filesystem._connect()
    elif _is_sftp(filesystem):
        transport = filesystem.client.get_transport()
        channel = filesystem.ftp.get_channel()
        if (
            transport is None
            or not transport.is_active()
            or transport.sock.fileno() < 0
            or channel.closed
        ):
            filesystem.client.close()
            filesystem._connect()


def close(filesystem: Any) -> None:
    """Closes the connection of an FTP or SFTP filesystem; a call in progress fails."""
    if _is_ftp(filesystem):
        filesystem.ftp.close()
    elif _is_sftp(filesystem):
        filesystem.client.close()


def _is_web(filesystem: Any) -> bool:
    """Without importing the module, which needs aiohttp."""
    module = sys.modules.get("fsspec.implementations.http")
    return module is not None and isinstance(filesystem, module.HTTPFileSystem)


def _is_ftp(filesystem: Any) -> bool:
    return isinstance(getattr(filesystem, "ftp", None), FTP)


def _is_sftp(filesystem: Any) -> bool:
    protocol = getattr(filesystem, "protocol", ())
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    return bool(names & SFTP) and hasattr(filesystem, "client")


def _reconnect(owner: weakref.ref[Any]) -> None:
    filesystem = owner()
    assert filesystem is not None
    filesystem.ftp.close()
    type(filesystem)._connect(filesystem)


def retry_nothing(filesystem: Any) -> None:
    """Switches off the retries of azure-core: they would wait 15 s and more within each of our
    attempts.
    """
    service = getattr(filesystem, "service_client", None)
    policy: Any = getattr(getattr(service, "_config", None), "retry_policy", None)
    if hasattr(policy, "total_retries"):
        policy.total_retries = 0


async def close_clients(filesystem: Any) -> None:
    """Closes the clients of an async filesystem, and detaches its finalizers: adlfs' would run on a
    closed loop.
    """
    creator = getattr(filesystem, "_s3creator", None)
    if creator is not None:
        await creator.__aexit__(None, None, None)
        return
    for name in CLIENTS:
        close = getattr(getattr(filesystem, name, None), "close", None)
        if close is not None:
            done = close()
            if isawaitable(done):
                await done
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        peeked = finalizer.peek()
        if peeked is not None and peeked[0] is filesystem:
            finalizer.detach()
