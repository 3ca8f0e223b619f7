"""TLS body: the rest of a body over TLS, received and deciphered by OpenSSL straight into the caller's buffer.

asyncio gives each TLS connection a buffer of 256 KiB, copies it into OpenSSL's, and calls back for each piece that it
deciphers. Here OpenSSL reads the socket itself (`openssl.py`), as much in one call as the caller wants and the kernel
has.

The handshake is over by then: the connection was verified by the client's own SSL context, and its `SSLObject` goes on.
asyncio's TLS is told that it is over, so it neither reads the connection nor shuts it down. After the body's last byte
asyncio takes over again; if the body is closed earlier, this module closes the connection.

What is private here is asyncio's: a TLS transport's protocol, its state, the transport below it, and the memory BIOs
between them. They are the same from Python 3.11 to 3.14. `take_over_tls` looks at them first, and raises where one is
not as expected (uvloop, a proxy that is reached over TLS too): the client library then reads by itself.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]
from asyncio.sslproto import SSLProtocol, SSLProtocolState
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from streamrec.storage.backend import FastPath
from streamrec.storage.backends.http.buffered_body import GATHER, LINGER
from streamrec.storage.backends.http.openssl import RecordReader, SocketReader, decipher

__all__ = ["ALL", "TLSBody", "take_over_tls"]

ALL: Final = "all connections"
"""What the fast path is left for."""

BLOCKS: Final = "a block over TLS by one call of OpenSSL"
"""What it is left for where only that does not work: records are then deciphered one by one, past aiohttp still."""

RECORD: Final = (16 << 10) + 512
"""No record of TLS is longer."""


class TLSBody:
    """The receiving end; made by `take_over_tls`.

    Args:
        finish: Called when all have come, and the connection is asyncio's again.
        way: Left where an error is neither the network's nor the server's.
    """

    def __init__(self, protocol: Any, remaining: int, finish: Callable[[], None], way: FastPath) -> None:
        self._protocol = protocol
        self._finish = finish
        self._way = way
        self._transport: asyncio.Transport = protocol._transport
        self._connection: ssl.SSLObject = protocol._sslobj
        self._incoming: ssl.MemoryBIO = protocol._incoming
        self._answers: ssl.MemoryBIO = protocol._outgoing
        self._socket: socket.socket = self._transport.get_extra_info("socket").dup()
        self._loop = asyncio.get_running_loop()
        self._reader: SocketReader | RecordReader | None = None
        self._remaining = remaining
        self._gathers = 1
        self._empty = False

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes; 0 when all have come.

        Raises:
            ConnectionError: The connection ended before the body, or what came was not what the server sent.
        """
        target, filled, until = buffer[: self._remaining], 0, None
        try:
            while filled < len(target):
                if self._empty and not await self._readable(len(target) - filled, self._remaining - filled, until):
                    break
                filled += self._read(target[filled:])
                self._empty = filled < len(target)
                if filled and until is None:
                    until = self._loop.time() + LINGER
        except Exception as error:
            if not isinstance(error, OSError):  # those of TLS are such errors too
                self._way.leave(ALL, error)
            if not filled:
                raise ConnectionError(f"the connection ended {self._remaining:,} bytes before the body") from error
        self._remaining -= filled
        if not self._remaining:
            self._release()
        return filled

    def _release(self) -> None:
        """All have come: asyncio goes on with the connection, unless something else came after it."""
        if self._socket.fileno() < 0 or (self._reader is not None and not self._reader.holds_none()):
            return
        if self._gathers > 1:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self._leave_socket()
        self._protocol._state = SSLProtocolState.WRAPPED
        self._transport.resume_reading()
        self._finish()

    def _read(self, target: memoryview) -> int:
        """What is there now: what asyncio took off the socket before, then what the socket has."""
        if self._reader is None:
            count = decipher(self._connection, target)
            if count == len(target):
                return count
            self._reader = _reader_of(self._connection, self._incoming, self._socket.fileno(), self._way)
            target = target[count:]
        else:
            count = 0
        count += self._reader.read(target)
        if self._answers.pending:  # to a change of keys
            self._transport.write(self._answers.read())
        return count

    async def _readable(self, wanted: int, sure: int, until: float | None) -> bool:
        """Waits until the socket has about as much as is wanted, of what will come for sure; or for so long."""
        # TLS adds less than 64 bytes to each of its records of 16 KiB
        enough = max(1, min(GATHER, wanted + 64 * (2 + wanted // (16 << 10)), sure - RECORD))
        if enough != self._gathers and not self._gathers < enough < GATHER:
            with suppress(OSError):  # not every system can
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, enough)
            self._gathers = enough
        waiter: asyncio.Future[bool] = self._loop.create_future()
        timer = None if until is None else self._loop.call_at(until, _answer, waiter, False)
        self._loop.add_reader(self._socket, _answer, waiter, True)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if self._socket.fileno() >= 0:
                self._loop.remove_reader(self._socket)

    def give_back(self) -> None:
        """Closes the connection; its client hears of it. May be called twice."""
        if self._socket.fileno() >= 0:
            self._leave_socket()
            self._transport.abort()

    def _leave_socket(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._loop.remove_reader(self._socket)
        self._socket.close()


def take_over_tls(
    transport: asyncio.Transport, remaining: int, finish: Callable[[], None], way: FastPath
) -> TLSBody | None:
    """Takes a TLS connection from asyncio; None where asyncio is about to do something with it.

    Raises:
        AttributeError: Something is not as this module knows it.
        OSError: The process has no descriptor left.
    """
    protocol: Any = getattr(transport, "_ssl_protocol", None)
    below = getattr(protocol, "_transport", None)
    if not isinstance(protocol, SSLProtocol) or not isinstance(below, _SelectorSocketTransport):
        raise AttributeError(f"TLS by {type(transport).__name__} is not asyncio's own over a socket")
    parts: Any = protocol
    if not isinstance(parts._incoming, ssl.MemoryBIO) or parts._sslobj is not transport.get_extra_info("ssl_object"):
        raise AttributeError("asyncio keeps its TLS in another way than from Python 3.11 to 3.14")
    if parts._state is not SSLProtocolState.WRAPPED or parts._write_backlog or below.is_closing():
        return None
    body = TLSBody(parts, remaining, finish, way)
    below.pause_reading()
    parts._set_state(SSLProtocolState.UNWRAPPED)
    return body


def _reader_of(
    connection: ssl.SSLObject, incoming: ssl.MemoryBIO, file: int, way: FastPath
) -> SocketReader | RecordReader:
    """OpenSSL itself, where it can be called; else Python's ssl module."""
    if way.is_open(BLOCKS):
        try:
            return SocketReader(connection, file)
        except AttributeError as error:
            way.leave(BLOCKS, error)
    return RecordReader(connection, incoming, file)


def _answer(waiter: asyncio.Future[bool], readable: bool) -> None:
    if not waiter.done():
        waiter.set_result(readable)
