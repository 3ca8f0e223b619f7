"""What some filesystems of fsspec get wrong.

- Its caches of whole files keep what they have when a download breaks off, and take it for the file: such a copy is
  removed here.
- Its FTP and SFTP filesystems have one connection to their server, and take it for granted: here it is made again.
- Async ones cannot be closed: here the clients are closed that they are known to have. adlfs also retries by itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ftplib import FTP, all_errors
from functools import partial
from inspect import isawaitable
from typing import Any, Final

from fsspec.implementations.cached import CachingFileSystem, WholeFileCacheFileSystem

from streamrec.storage.faults import Cause, TransientError

__all__ = ["SFTP", "below", "close", "close_clients", "connect_again", "mend", "retry_nothing", "whole"]

SFTP: Final = {"sftp", "ssh"}

CLIENTS: Final = ("_session", "service_client", "credential")
"""Where async filesystems keep what must be closed: most of them, adlfs, adlfs."""


def below(filesystem: Any) -> Any:
    """What a cache keeps copies of; anything else as it is."""
    return filesystem.fs if isinstance(filesystem, CachingFileSystem) else filesystem


@contextmanager
def whole(filesystem: Any, name: str, size: int | None) -> Iterator[None]:
    """Opens a file within: a copy that is not whole is removed, so that the next attempt fetches it again.

    Args:
        filesystem: Any; only a simplecache and a filecache are looked at.
        name: The file.
        size: Its bytes, as its store says; None where it does not.

    Raises:
        TransientError: The copy has another number of bytes.
    """
    if not isinstance(filesystem, WholeFileCacheFileSystem):  # whose `protocol` an old fsspec takes from what it caches
        yield
        return
    try:
        yield
        copy = copy_of(filesystem, name)
        if size is not None and copy is not None and (found := os.path.getsize(copy)) != size:
            raise TransientError(Cause.BROKEN, f"the copy in the cache has {found:,} bytes of {size:,}")
    except BaseException:
        copy = copy_of(filesystem, name)
        if copy is not None and copy.startswith(filesystem.storage[-1]):
            with suppress(OSError):
                os.unlink(copy)
        raise


def copy_of(filesystem: Any, name: str) -> str | None:
    """Where the copy of a file is; None where there is none."""
    found = filesystem._check_file(filesystem._strip_protocol(name))
    return (found[1] if isinstance(found, tuple) else found) or None


def mend(filesystem: Any) -> None:
    """Has a filesystem close its old connection where it makes a new one; one that is not FTP is left alone."""
    if _is_ftp(filesystem):
        filesystem._connect = partial(_reconnect, weakref.ref(filesystem))


def connect_again(filesystem: Any) -> None:
    """Makes a new connection where the old one failed, or the server closed it, as FTP's do after some idle minutes."""
    if _is_ftp(filesystem):
        try:
            filesystem.ftp.voidcmd("NOOP")
        except all_errors:
            filesystem._connect()
    elif _is_sftp(filesystem):
        transport, channel = filesystem.client.get_transport(), filesystem.ftp.get_channel()
        if transport is None or not transport.is_active() or transport.sock.fileno() < 0 or channel.closed:
            filesystem.client.close()
            filesystem._connect()


def close(filesystem: Any) -> None:
    """Closes the one connection of an FTP or SFTP filesystem; a call that is under way fails."""
    if _is_ftp(filesystem):
        filesystem.ftp.close()
    elif _is_sftp(filesystem):
        filesystem.client.close()


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
    """Switches the retries of azure-core off: they would wait 15 s and more within each attempt of ours."""
    service = getattr(filesystem, "service_client", None)
    policy: Any = getattr(getattr(service, "_config", None), "retry_policy", None)
    if hasattr(policy, "total_retries"):
        policy.total_retries = 0


async def close_clients(filesystem: Any) -> None:
    """Closes the clients of an async filesystem, and has no finalizer of it run on a loop that is gone (adlfs)."""
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
