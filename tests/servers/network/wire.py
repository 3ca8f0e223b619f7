"""Wire: controls a connected socket below HTTP.

Pacing is the kernel's (`SO_MAX_PACING_RATE`, Linux 3.13 and later): it holds for short bodies as
for long ones, costs no thread and no timer here, and each connection has its own. Sockets are
blocking; whoever wants a thread back that waits in here shuts its socket down.
"""

import contextlib
import os
import select
import socket
import struct
import sys
from typing import Final

_SO_MAX_PACING_RATE: Final = 47  # asm-generic/socket.h; the socket module does not name it
_UNLIMITED: Final = 2**64 - 1
_PIECE: Final = 256 * 1024


def pace(sock: socket.socket, rate: float | None) -> None:
    """Limits what `sock` sends to `rate` bytes per second; None lifts the limit.

    Raises:
        OSError: This system cannot pace a socket (only Linux can).
    """
    if sys.platform != "linux":
        if rate is None:
            return
        raise OSError("only Linux paces a socket; set rate=None here")
    value = _UNLIMITED if rate is None else int(rate)
    sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", value))


def pacing(sock: socket.socket) -> int | None:
    """The limit that the kernel keeps for `sock`, in bytes per second; None is no limit."""
    if sys.platform != "linux":
        return None
    (value,) = struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, 8))
    return None if value == _UNLIMITED else int(value)


def send(sock: socket.socket, file: int, start: int, stop: int, mask: int = 0) -> int:
    """Sends bytes `start` to `stop` of an open file, each XORed with `mask`; without a mask they
    are not copied here.

    Returns:
        How many it sent: fewer only where the file ends before `stop`.

    Raises:
        OSError: The peer went away.
    """
    table = bytes(byte ^ mask for byte in range(256)) if mask else b""
    offset = start
    while offset < stop:
        if mask:
            data = os.pread(file, min(_PIECE, stop - offset), offset)
            sock.sendall(data.translate(table))
            sent = len(data)
        else:
            sent = os.sendfile(sock.fileno(), file, offset, stop - offset)
        if not sent:
            break
        offset += sent
    return offset - start


def drain(sock: socket.socket) -> None:
    """Waits until all that was sent has left for the peer, or the connection is down.

    The kernel calls a socket writable only when less than TCP_NOTSENT_LOWAT bytes wait in it: at 1,
    when none does.
    """
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 1)
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        poll.poll()


def reset(sock: socket.socket) -> None:
    """Breaks the connection with a TCP reset; the bytes sent before it reach the peer."""
    with contextlib.suppress(OSError):
        drain(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def stall(sock: socket.socket) -> None:
    """Sends nothing more, and returns when the peer has closed the connection or it was shut
    down.
    """
    with contextlib.suppress(OSError):
        while sock.recv(_PIECE):
            pass
