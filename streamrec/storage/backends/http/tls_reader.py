"""TLS reader: OpenSSL decrypts a connection directly into the caller's buffer.

asyncio gives each TLS connection a buffer of 256 KiB, copies it into OpenSSL's, and calls back for each TLS record.
Here OpenSSL reads the socket itself (`openssl.py`), in one call as many bytes as the caller wants and the kernel has.

The handshake is over by then: the client's own SSL context has verified the connection, whose `SSLObject` stays in use.
asyncio's TLS protocol is put into its final state, so that it neither reads the connection nor shuts it down. After the
body's last byte asyncio takes over again; if the body is closed earlier, the connection is closed.

The private details are asyncio's: a TLS transport's protocol, its state, the transport below it, and the memory BIOs
between them. They are the same from Python 3.11 to 3.14. They are checked first, and if one is not as expected (uvloop,
a proxy over TLS) the client library reads by itself.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol, SSLProtocolState
from typing import Any, Final

from streamrec.storage.backend import FastPath
from streamrec.storage.backends.http.openssl import RecordReader, SocketReader, decrypt

__all__ = ["BLOCKS", "TLSReader"]

BLOCKS: Final = "a block over TLS by one call of OpenSSL"
"""The key that disables only the calls of OpenSSL: Python's ssl module then decrypts each record, past aiohttp."""


class TLSReader:
    """Decrypts one connection over asyncio's TLS transport; `transport` is the one below, over the socket.

    An AttributeError: a private detail is not as this module expects. If OpenSSL cannot be called, it disables the fast
    path for BLOCKS.
    """

    def __init__(self, transport: asyncio.Transport, fast_path: FastPath) -> None:
        protocol: Any = getattr(transport, "_ssl_protocol", None)
        below = getattr(protocol, "_transport", None)
        if not isinstance(protocol, SSLProtocol) or below is None or below.get_extra_info("sslcontext"):
            raise AttributeError(f"TLS by {type(transport).__name__} is not asyncio's own over a socket")
        self.transport: asyncio.Transport = below
        parts: Any = protocol
        self._protocol = parts
        self._connection: ssl.SSLObject = parts._sslobj
        self._incoming: ssl.MemoryBIO = parts._incoming
        self._answers: ssl.MemoryBIO = parts._outgoing
        self._fast_path = fast_path
        self._reader: SocketReader | RecordReader | None = None
        known = transport.get_extra_info("ssl_object")
        if not isinstance(self._incoming, ssl.MemoryBIO) or self._connection is not known:
            raise AttributeError("asyncio keeps its TLS in another way than from Python 3.11 to 3.14")

    def is_idle(self) -> bool:
        """Whether asyncio has no pending work on the connection."""
        state, backlog = self._protocol._state, self._protocol._write_backlog
        return state is SSLProtocolState.WRAPPED and not backlog and not self.transport.is_closing()

    def begin(self) -> None:
        """Switches off asyncio's TLS."""
        self._protocol._state = SSLProtocolState.UNWRAPPED

    def read(self, target: memoryview, file: int) -> int:
        """Reads the available bytes: those that asyncio read before, then those of the socket `file`."""
        count = 0
        if self._reader is None:
            count = decrypt(self._connection, target)
            if count == len(target):
                return count
            self._reader = self._make_reader(file)
        count += self._reader.read(target[count:])
        if self._answers.pending:  # to a change of keys
            self.transport.write(self._answers.read())
        return count

    def holds_none(self) -> bool:
        return self._reader is None or self._reader.holds_none()

    def close(self) -> None:
        """Stops reading the socket. May be called twice."""
        if self._reader is not None:
            self._reader.close()

    def release(self) -> None:
        """Switches on asyncio's TLS again."""
        self._protocol._state = SSLProtocolState.WRAPPED

    def _make_reader(self, file: int) -> SocketReader | RecordReader:
        """Returns a reader that calls OpenSSL directly if possible, else one by Python's ssl module."""
        if self._fast_path.is_enabled(BLOCKS):
            try:
                return SocketReader(self._connection, file)
            except AttributeError as error:
                self._fast_path.disable(BLOCKS, error)
        return RecordReader(self._connection, self._incoming, file)
