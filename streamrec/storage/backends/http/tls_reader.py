"""TLS reader: what a connection over TLS gives, deciphered by OpenSSL straight into the caller's buffer.

asyncio gives each TLS connection a buffer of 256 KiB, copies it into OpenSSL's, and calls back for each piece that it
deciphers. Here OpenSSL reads the socket itself (`openssl.py`), as much in one call as the caller wants and the kernel
has.

The handshake is over by then: the connection was verified by the client's own SSL context, and its `SSLObject` goes on.
asyncio's TLS is told that it is over, so it neither reads the connection nor shuts it down. After the body's last byte
asyncio takes over again; if the body is closed earlier, the connection is closed.

What is private here is asyncio's: a TLS transport's protocol, its state, the transport below it, and the memory BIOs
between them. They are the same from Python 3.11 to 3.14. They are looked at first, and where one is not as expected
(uvloop, a proxy that is reached over TLS too) the client library reads by itself.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol, SSLProtocolState
from typing import Any, Final

from streamrec.storage.backend import FastPath
from streamrec.storage.backends.http.openssl import RecordReader, SocketReader, decipher

__all__ = ["BLOCKS", "TLSReader"]

BLOCKS: Final = "a block over TLS by one call of OpenSSL"
"""What the fast path is left for where only that does not work: records are then deciphered one by one, past aiohttp
still."""


class TLSReader:
    """What deciphers one connection.

    Args:
        transport: asyncio's TLS transport.
        way: Left for BLOCKS where OpenSSL cannot be called.

    Attributes:
        transport: The one below it, over the socket.

    Raises:
        AttributeError: Something is not as this module knows it.
    """

    def __init__(self, transport: asyncio.Transport, way: FastPath) -> None:
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
        self._way = way
        self._reader: SocketReader | RecordReader | None = None
        known = transport.get_extra_info("ssl_object")
        if not isinstance(self._incoming, ssl.MemoryBIO) or self._connection is not known:
            raise AttributeError("asyncio keeps its TLS in another way than from Python 3.11 to 3.14")

    def is_idle(self) -> bool:
        """Whether asyncio is not about to do something with the connection."""
        state, backlog = self._protocol._state, self._protocol._write_backlog
        return state is SSLProtocolState.WRAPPED and not backlog and not self.transport.is_closing()

    def begin(self) -> None:
        """Asyncio's TLS is over."""
        self._protocol._state = SSLProtocolState.UNWRAPPED

    def read(self, target: memoryview, file: int) -> int:
        """What is there now: what asyncio took off the socket before, then what the socket, `file`, has.

        Raises:
            OSError: The connection ended, or what came was not what the server sent.
        """
        count = 0
        if self._reader is None:
            count = decipher(self._connection, target)
            if count == len(target):
                return count
            self._reader = self._reader_of(file)
        count += self._reader.read(target[count:])
        if self._answers.pending:  # to a change of keys
            self.transport.write(self._answers.read())
        return count

    def holds_none(self) -> bool:
        """Whether all that was taken off the socket was deciphered and given out."""
        return self._reader is None or self._reader.holds_none()

    def close(self) -> None:
        """The socket is read no more. May be called twice."""
        if self._reader is not None:
            self._reader.close()

    def release(self) -> None:
        """Asyncio's TLS goes on with the connection."""
        self._protocol._state = SSLProtocolState.WRAPPED

    def _reader_of(self, file: int) -> SocketReader | RecordReader:
        """OpenSSL itself, where it can be called; else Python's ssl module."""
        if self._way.is_open(BLOCKS):
            try:
                return SocketReader(self._connection, file)
            except AttributeError as error:
                self._way.leave(BLOCKS, error)
        return RecordReader(self._connection, self._incoming, file)
