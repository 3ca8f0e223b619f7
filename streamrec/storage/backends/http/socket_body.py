"""Socket body: the rest of a response's body, read from its socket straight into the caller's buffers.

aiohttp makes a `bytes` object of what the socket gives, another of the body in it, and wakes its reader for
each: that is half of what a streamed GET costs. So once aiohttp has done what it is good at (connecting, TLS, the
pool, the response's head) and a large body of known length is left, its transport reads no more, and the socket is read
here, over TLS by a `TLSReader`. Compared with aiohttp's own stream in benchmarks/stream.py.

Rules:
- After the last byte the connection is aiohttp's again, and goes back to its pool: the next request uses it. aiohttp
  parses each response with a new parser, so it does not matter that the last one never saw the body's end. A body that
  is closed before its end closes the connection.
- The socket is read only while a `readinto` waits: back-pressure is the caller's, and no byte is ever written into a
  buffer whose owner is not waiting for it.
- `readinto` returns when the buffer is full, or `LINGER` seconds after its first byte.
- The kernel gathers: while much is still to come, it says so only when `GATHER` bytes are there (SO_RCVLOWAT), or as
  many as are wanted if that is less.
- aiohttp may still switch the transport's reading on: an earlier response of the same connection that was whole when
  the connection was given on, and is drained only now, does so. What asyncio reads then comes next, and its reading is
  switched off again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from streamrec.storage.backend import FastPath
from streamrec.storage.backends.http.tls_reader import TLSReader

__all__ = ["ALL", "SocketBody"]

GATHER: Final = 1 << 20
"""Bytes at a time: a turn of the event loop for fewer costs as much as receiving them. Ungathered, a paced
connection gives 64 KiB."""

LINGER: Final = 0.02
"""How long a buffer that is not full waits for more, in seconds."""

RECORD: Final = (16 << 10) + 512
"""No record of TLS is longer."""

ALL: Final = "all connections"
"""What the fast path is left for."""


class SocketBody(asyncio.Protocol):
    """The receiving end of a connection, which it takes from asyncio.

    Args:
        transport: The connection's, over its socket.
        remaining: Bytes that have not come yet.
        finish: Called when all have come, and the connection is asyncio's again.
        way: Left where an error is neither the network's nor the server's.
        tls: What deciphers; None: nothing does, and the transport has this protocol meanwhile.

    Raises:
        OSError: The process has no descriptor left.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        remaining: int,
        finish: Callable[[], None],
        way: FastPath,
        tls: TLSReader | None = None,
    ) -> None:
        self._transport = transport
        self._handler = transport.get_protocol()
        self._finish = finish
        self._way = way
        self._tls = tls
        self._socket: socket.socket = transport.get_extra_info("socket").dup()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[bool] | None = None
        self._spilled = b""
        self._remaining = remaining
        self._gathers = 1
        self._empty = False
        transport.pause_reading()
        if tls is None:
            transport.set_protocol(self)
        else:
            tls.begin()

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

    def give_back(self) -> None:
        """Closes the connection; its client hears of it. May be called twice."""
        if self._socket.fileno() >= 0:
            self._leave_socket()
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """What asyncio read nevertheless."""
        self._transport.pause_reading()
        self._spilled += data
        self._wake(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: aiohttp's own protocol hears of it too, for its books."""
        self._leave_socket()
        self._wake(True)
        self._handler.connection_lost(exc)

    def _read(self, target: memoryview) -> int:
        """What is there now."""
        if self._spilled:
            count = min(len(target), len(self._spilled))
            target[:count], self._spilled = self._spilled[:count], self._spilled[count:]
            return count
        if self._tls is not None:
            return self._tls.read(target, self._socket.fileno())
        try:
            count = self._socket.recv_into(target)
        except BlockingIOError:
            return 0
        if not count:
            raise ConnectionResetError("the server closed the connection")
        return count

    async def _readable(self, wanted: int, sure: int, until: float | None) -> bool:
        """Waits until the socket has about as much as is wanted, of what will come for sure; or for so long."""
        if self._socket.fileno() < 0:
            raise ConnectionResetError("the connection was closed")
        # TLS adds less than 64 bytes to each of its records of 16 KiB
        enough = max(1, min(GATHER, wanted + 64 * (2 + wanted // (16 << 10)), sure - RECORD))
        if enough != self._gathers and not self._gathers < enough < GATHER:
            with suppress(OSError):  # not every system can
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, enough)
            self._gathers = enough
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiter = waiter
        timer = None if until is None else self._loop.call_at(until, self._wake, False)
        self._loop.add_reader(self._socket, self._wake, True)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if self._socket.fileno() >= 0:
                self._loop.remove_reader(self._socket)

    def _wake(self, readable: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(readable)

    def _release(self) -> None:
        """All have come: aiohttp goes on with the connection, unless something else came after it."""
        if self._socket.fileno() < 0 or self._spilled or not (self._tls is None or self._tls.holds_none()):
            return
        if self._gathers > 1:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self._leave_socket()
        if self._tls is not None:
            self._tls.release()
        self._transport.resume_reading()
        self._finish()

    def _leave_socket(self) -> None:
        if self._tls is not None:
            self._tls.close()
        elif self._transport.get_protocol() is self:
            self._transport.set_protocol(self._handler)
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
