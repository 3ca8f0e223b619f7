"""TLS reader: decrypts a connection past asyncio, directly into the caller's buffer.

asyncio gives each TLS connection a buffer of 256 KiB, copies it into OpenSSL's, and calls back for
each TLS record. Here the connection's own `SSLObject` decrypts into the caller's buffer instead,
record by record (16 KiB), until the buffer is full or the socket is empty.

The handshake is over by then: the client's own SSL context has verified the connection, whose
`SSLObject` stays in use. asyncio's TLS protocol is put into its final state, so that it neither
reads the connection nor shuts it down. After the body's last byte asyncio takes over again; if the
body is closed earlier, the connection is closed.

Private details, which are checked first, are asyncio's: a TLS transport's protocol, its state, the
transport below it, and the memory BIOs between them. They are the same from Python 3.11 to 3.14.
If one is not as expected (uvloop, a proxy over TLS), the client library reads.

One call of OpenSSL for a whole buffer was tried, by ctypes and from the address of CPython's
`SSL *`: ten percent more MB/s over TLS 1.3, for a crash wherever that address is another.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from asyncio.sslproto import SSLProtocol, SSLProtocolState
from typing import Any, Final

BUFFER: Final = 128 << 10
"""Bytes per read of a socket: they stay in the L2 cache until they are decrypted."""

_of_thread = threading.local()


def _buffer_of_thread() -> memoryview:
    """Returns a buffer of the calling thread: no other thread overwrites it before OpenSSL has read
    it.
    """
    if not hasattr(_of_thread, "buffer"):
        _of_thread.buffer = memoryview(bytearray(BUFFER))
    buffer: memoryview = _of_thread.buffer
    return buffer


def decrypt(connection: ssl.SSLObject, target: memoryview) -> int:
    """Decrypts the data in a connection's memory BIO; returns the number of bytes, possibly 0."""
    filled = 0
    try:
        while filled < len(target):
            count: int = connection.read(len(target) - filled, target[filled:])  # type: ignore[assignment]
            if not count:
                raise ConnectionResetError("the server closed the connection")
            filled += count
    except ssl.SSLWantReadError:
        pass
    except ConnectionError:
        if not filled:
            raise
    return filled


class TLSReader:
    """Decrypts one connection over asyncio's TLS transport; `transport` is the one below, over the
    socket.

    Raises AttributeError if a private detail is not as this module expects.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        protocol: Any = getattr(transport, "_ssl_protocol", None)
        below = getattr(protocol, "_transport", None)
        if (
            not isinstance(protocol, SSLProtocol)
            or below is None
            or below.get_extra_info("sslcontext")
        ):
            raise AttributeError(
                f"TLS by {type(transport).__name__} is not asyncio's own over a socket"
            )
        # These are private: any other shape than asyncio's today is an error, and the caller then
        # reads through asyncio.
        self.transport: asyncio.Transport = below
        parts: Any = protocol
        self._protocol = parts
        self._connection: ssl.SSLObject = parts._sslobj
        self._incoming: ssl.MemoryBIO = parts._incoming
        self._answers: ssl.MemoryBIO = parts._outgoing
        known = transport.get_extra_info("ssl_object")
        if not isinstance(self._incoming, ssl.MemoryBIO) or self._connection is not known:
            raise AttributeError(
                "asyncio keeps its TLS in another way than from Python 3.11 to 3.14"
            )

    def is_idle(self) -> bool:
        """Whether asyncio has no pending work on the connection."""
        state = self._protocol._state
        backlog = self._protocol._write_backlog
        return state is SSLProtocolState.WRAPPED and not backlog and not self.transport.is_closing()

    def begin(self) -> None:
        """Switches off asyncio's TLS."""
        self._protocol._state = SSLProtocolState.UNWRAPPED

    def read(self, target: memoryview, file: int) -> int:
        """Reads the available bytes: those that asyncio read before, then those of the socket
        `file`. Returns their number.

        Raises ConnectionError if the connection ended, or its data does not verify.
        """
        filled = decrypt(self._connection, target)
        buffer = _buffer_of_thread() if filled < len(target) else memoryview(b"")
        while filled < len(target):
            try:
                count = os.readv(file, [buffer])
            except BlockingIOError:
                break
            if not count:
                if filled:
                    break  # the end is reported by the next read, after these bytes
                raise ConnectionResetError("the connection ended")
            self._incoming.write(buffer[:count])
            filled += decrypt(self._connection, target[filled:])
        if self._answers.pending:  # to a change of keys
            self.transport.write(self._answers.read())
        return filled

    def holds_none(self) -> bool:
        """Whether no bytes from the socket wait to be decrypted."""
        return not self._incoming.pending and not self._connection.pending()

    def release(self) -> None:
        """Switches on asyncio's TLS again."""
        self._protocol._state = SSLProtocolState.WRAPPED
