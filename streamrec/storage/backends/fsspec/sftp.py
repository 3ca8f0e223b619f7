"""fsspec's SFTP filesystem has one connection to its server, and takes it for granted: here it is made again."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["PROTOCOLS", "close", "wake"]

PROTOCOLS: Final = {"sftp", "ssh"}


def close(filesystem: Any) -> None:
    """Closes the connection; another filesystem is left alone."""
    if _is_sftp(filesystem):
        filesystem.client.close()


def wake(filesystem: Any) -> None:
    """Makes a new connection where the old one was closed or has failed."""
    if _is_sftp(filesystem):
        transport, channel = filesystem.client.get_transport(), filesystem.ftp.get_channel()
        if transport is None or not transport.is_active() or transport.sock.fileno() < 0 or channel.closed:
            filesystem.client.close()
            filesystem._connect()


def _is_sftp(filesystem: Any) -> bool:
    protocol = getattr(filesystem, "protocol", ())
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    return bool(names & PROTOCOLS) and hasattr(filesystem, "client")
