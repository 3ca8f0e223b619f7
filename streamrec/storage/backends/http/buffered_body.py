"""Buffered body: the rest of a response's body, received by the kernel straight into the caller's buffers.

aiohttp makes a `bytes` object of what the socket gives, another of the body in it, and wakes its reader for
each: that is half of what a streamed GET costs. asyncio can do without: a BufferedProtocol tells the
transport where the next bytes go. So once aiohttp has done what it is good at (connecting, TLS, the pool,
the response's head) and a large body of known length is left, its connection's transport is given this
protocol instead (`Transport.set_protocol`, asyncio's documented way to switch), and bytes land where the
framer wants them. Measured beside aiohttp's own stream: see benchmarks/stream.py.

Rules:
- Only a plain body of known length is taken over, when aiohttp holds none of it any more, and when so much
  is left that a new connection for the next request does not count: the connection is closed afterwards,
  since aiohttp's parser did not see the body's end.
- The transport reads only while a `readinto` waits: back-pressure is the caller's, and no byte is ever
  written into a buffer whose owner is not waiting for it. It is not stopped for a caller who comes back with the next
  buffer at once, before the loop looks at its sockets again: to stop and to go on costs two dozen calls.
- `readinto` returns when the buffer is full, or `LINGER` seconds after its first byte.
- The kernel gathers: while much is still to come, it says so only when `GATHER` bytes are there (SO_RCVLOWAT), or as
  many as are wanted if that is less. Over TLS what a body is short of may be here already and not deciphered yet, so
  near its end nothing is gathered there.
- Taking a body over is a fast path (`fast_path.py`): where it fails, aiohttp goes on as ever.
- aiohttp may still switch the reading on: an earlier response of the same connection that was whole when the
  connection was given on, and is drained only now, does so. What comes then is kept for the next `readinto`,
  and the reading is switched off again.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import aiohttp

from streamrec.storage.backends.fast_path import FastPath

__all__ = ["BUFFERED_BODIES", "BufferedBody", "take_over"]

LEAST: Final = 1 << 20
"""Bytes that must be left for a body to be taken over."""

SPILL: Final = 1 << 16
"""Bytes that are taken at a time while nobody waits for them."""

GATHER: Final = 1 << 20
"""So many bytes at a time: a turn of the event loop for fewer costs as much as receiving them. Ungathered, a paced
connection gives 64 KiB."""

DECIPHERING: Final = 512 << 10
"""More than asyncio's TLS takes off a socket before it is deciphered."""

LINGER: Final = 0.02
"""How long a buffer that is not full waits for more, in seconds."""

BUFFERED_BODIES: Final = FastPath("receiving bodies past aiohttp (streamrec.storage.backends.http.buffered_body)")
ALL: Final = "all connections"


def take_over(response: aiohttp.ClientResponse, remaining: int) -> BufferedBody | None:
    """Takes a response's connection over, if that is worth it and safe; None where it is not.

    Args:
        response: A response whose `content` was drained a moment ago.
        remaining: Bytes of its body that have not come yet.
    """
    if remaining < LEAST or not BUFFERED_BODIES.is_open(ALL):
        return None
    try:
        return _buffered(response, remaining)
    except Exception as error:
        BUFFERED_BODIES.leave(ALL, error)
        return None


def _buffered(response: aiohttp.ClientResponse, remaining: int) -> BufferedBody | None:
    connection = response.connection
    if connection is None or connection.transport is None:
        return None
    transport, handler = connection.transport, connection.protocol
    held = getattr(handler, "_tail", b"")
    if not isinstance(transport, asyncio.Transport) or handler is None or held or not transport.is_reading():
        return None
    buffered = BufferedBody(transport, handler, remaining)
    transport.pause_reading()
    transport.set_protocol(buffered)
    return buffered


class BufferedBody(asyncio.BufferedProtocol):
    """The receiving end; made by `take_over`."""

    def __init__(self, transport: asyncio.Transport, handler: asyncio.BaseProtocol, remaining: int) -> None:
        self._transport = transport
        self._handler = handler
        self._socket = transport.get_extra_info("socket")
        self._secure = transport.get_extra_info("sslcontext") is not None
        self._gathers = 1
        self._remaining = remaining
        self._loop = asyncio.get_running_loop()
        self._target: memoryview | None = None
        self._filled = 0
        self._spill = memoryview(bytearray())
        self._spilled = b""
        self._waiter: asyncio.Future[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes; 0 when all have come.

        Raises:
            ConnectionError: The connection ended before the body.
        """
        if not self._remaining or not buffer:
            return 0
        if self._spilled:
            return self._take_spilled(buffer)
        self._target, self._filled = buffer[: self._remaining], 0
        if self._failure is None:
            self._waiter = self._loop.create_future()
            self._gather()
            self._transport.resume_reading()
            try:
                await self._waiter
            except BaseException:
                self._let_go()
                self._rest()
                raise
        if not self._filled:
            raise ConnectionError(f"the connection ended {self._remaining:,} bytes before the body") from self._failure
        self._remaining -= self._filled
        return self._filled

    def _gather(self) -> None:
        """Tells the kernel how much must be there before we hear of it."""
        if self._socket is None or self._target is None:
            return
        sure = self._remaining - self._filled - (DECIPHERING if self._secure else 0)
        count = max(1, min(GATHER, len(self._target) - self._filled, sure))
        if count == self._gathers or self._gathers < count < GATHER:
            return
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._gathers = count
        except OSError:  # not every system can
            self._socket = None

    def _take_spilled(self, buffer: memoryview) -> int:
        count = min(len(buffer), len(self._spilled), self._remaining)
        buffer[:count] = self._spilled[:count]
        self._spilled = self._spilled[count:]
        self._remaining -= count
        return count

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport puts the next bytes."""
        if self._target is None:
            self._transport.pause_reading()
            self._spill = memoryview(bytearray(SPILL))
            return self._spill
        return self._target[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have landed."""
        if self._target is None:
            self._spilled += self._spill[:nbytes]
            return
        self._filled += nbytes
        if self._filled == len(self._target):
            self._wake()
            return
        self._gather()
        if self._linger is None:
            self._linger = self._loop.call_later(LINGER, self._wake)

    def eof_received(self) -> bool:
        """The server ended the connection; the transport closes it."""
        self._failure = self._failure or ConnectionResetError("the server closed the connection")
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: aiohttp's own protocol hears of it too, for its books."""
        self._failure = self._failure or exc or ConnectionAbortedError("the connection was closed")
        self._wake()
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """Nothing is written any more."""

    def resume_writing(self) -> None:
        """Nothing is written any more."""

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
            self._let_go()
            if self._secure:  # what is deciphered already would wait for the next bytes: only resuming asks for it
                self._rest()
            else:
                self._loop.call_soon(self._rest)  # behind the caller's step, and before the loop looks at its sockets

    def _let_go(self) -> None:
        """The caller's buffer is its own again."""
        self._target = self._waiter = None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def _rest(self) -> None:
        """The transport reads no further, unless somebody waits by now."""
        if self._target is None and self._failure is None and not self._transport.is_closing():
            self._transport.pause_reading()
