"""fsspec's FTP filesystem has one connection to its server, and takes it for granted: here it is made again."""

from __future__ import annotations

from ftplib import FTP, all_errors
from functools import partial
from typing import Any
from weakref import ref

__all__ = ["close", "mend", "wake"]


def close(filesystem: Any) -> None:
    """Closes the connection; a call that is under way fails."""
    if isinstance(getattr(filesystem, "ftp", None), FTP):
        filesystem.ftp.close()


def mend(filesystem: Any) -> None:
    """Has a filesystem close its old connection where it makes a new one; one that is not FTP is left alone."""
    if isinstance(getattr(filesystem, "ftp", None), FTP):
        filesystem._connect = partial(_reconnect, ref(filesystem))


def wake(filesystem: Any) -> None:
    """Makes a new connection where the server closed the old one, as it does after some minutes without a command."""
    ftp = getattr(filesystem, "ftp", None)
    if isinstance(ftp, FTP):
        try:
            ftp.voidcmd("NOOP")
        except all_errors:
            filesystem._connect()


def _reconnect(owner: ref[Any]) -> None:
    filesystem = owner()
    assert filesystem is not None
    filesystem.ftp.close()
    type(filesystem)._connect(filesystem)
