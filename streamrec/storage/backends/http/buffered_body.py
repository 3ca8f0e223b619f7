"""Buffered body: the rest of a response's body, received by the kernel straight into the caller's buffers.

aiohttp makes a `bytes` object of what the socket gives, another of the body in it, and wakes its reader for
each: that is half of what a streamed GET costs. asyncio can do without: a BufferedProtocol tells the
transport where the next bytes go. So once aiohttp has done what it is good at (connecting, TLS, the pool,
the response's head) and a large body of known length is left, its connection's transport is given this
protocol instead (`Transport.set_protocol`, asyncio's documented way to switch), and bytes land where the
framer wants them. Compared with aiohttp's own stream in benchmarks/stream.py.

Rules:
- After the last byte the connection is aiohttp's again, and goes back to its pool: the next request uses it. aiohttp
  parses each response with a new parser, so it does not matter that the last one never saw the body's end. A body that
  is closed before its end closes the connection.
- The transport reads only while a `readinto` waits: back-pressure is the caller's, and no byte is ever
  written into a buffer whose owner is not waiting for it. It is not stopped for a caller who comes back with the next
  buffer at once, before the loop looks at its sockets again: to stop and to go on costs two dozen calls.
- `readinto` returns when the buffer is full, or `LINGER` seconds after its first byte.
- The kernel gathers: while much is still to come, it says so only when `GATHER` bytes are there (SO_RCVLOWAT), or as
  many as are wanted if that is less.
- aiohttp may still switch the reading on: an earlier response of the same connection that was whole when the
  connection was given on, and is drained only now, does so. What comes then is kept for the next `readinto`,
  and the reading is switched off again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

__all__ = ["GATHER", "LINGER", "BufferedBody"]

GATHER: Final = 1 << 20
"""Bytes at a time: a turn of the event loop for fewer costs as much as receiving them. Ungathered, a paced
connection gives 64 KiB."""

LINGER: Final = 0.02
"""How long a buffer that is not full waits for more, in seconds."""


class BufferedBody(asyncio.BufferedProtocol):
    """The receiving end; made by `take_over`.

    Args:
        finish: Called when all have come, and the transport is the handler's again.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        handler: asyncio.BaseProtocol,
        remaining: int,
        finish: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._handler = handler
        self._finish = finish
        self._ours = True
        self._socket = transport.get_extra_info("socket")
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
        return self._delivered(self._filled)

    def _gather(self) -> None:
        """Tells the kernel how much must be there before we hear of it."""
        if self._socket is None or self._target is None:
            return
        wanted, sure = len(self._target) - self._filled, self._remaining - self._filled
        count = max(1, min(GATHER, wanted, sure))
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
        return self._delivered(count)

    def _delivered(self, count: int) -> int:
        """The caller has more bytes; the connection has done its work after the last one."""
        self._remaining -= count
        if not self._remaining and self._failure is None and not self._spilled:
            self._release()
        return count

    def _release(self) -> None:
        """The connection goes back to where it came from."""
        if self._gathers > 1 and self._socket is not None:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self.give_back()
        self._finish()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._target is None:
            self._transport.pause_reading()
        if self._target is None:
            self._spill = memoryview(bytearray(1 << 16))
            return self._spill
        return self._target[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._target is None:
            self._spilled += self._spill[:nbytes]
            return
        self._filled += nbytes
        if self._filled == len(self._target):
            self._wake()
            return
        self._gather()
        if self._linger is None and self._filled:
            self._linger = self._loop.call_later(LINGER, self._wake)

    def give_back(self) -> None:
        """The connection's own protocol goes on with it."""
        if not self._ours or self._failure is not None:
            return
        self._ours = False
        self._failure = ConnectionAbortedError("the body was closed")
        self._transport.set_protocol(self._handler)

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
            self._loop.call_soon(self._rest)  # after the caller's step, and before the loop looks at its sockets

    def _let_go(self) -> None:
        """The caller's buffer is its own again."""
        self._target = self._waiter = None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def _rest(self) -> None:
        """The transport reads no further, unless a reader waits by now."""
        if self._target is None and self._failure is None and not self._transport.is_closing():
            self._transport.pause_reading()
