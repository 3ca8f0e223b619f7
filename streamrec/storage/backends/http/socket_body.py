"""Socket body: reads the rest of a response's body from its socket directly into the caller's
buffers.

aiohttp makes a `bytes` object of each read from the socket, another one of the body in it, and
wakes its reader for each: half of the cost of a streamed GET. So aiohttp connects, does the TLS
handshake, manages the pool and reads the head; then, for a large body of known length, its
transport stops reading and this module reads the socket, over TLS by a `TLSReader`.
benchmarks/stream.py compares it with aiohttp's own stream.

Rules:
- After the last byte the connection returns to aiohttp's pool for the next request. aiohttp parses
  each response with a new parser, so it does not matter that the last one never saw the body's end.
  A body that is closed before its end closes the connection.
- The socket is read only while a `readinto` waits: the caller controls back-pressure, and no byte
  is ever written into a buffer whose owner is not waiting for it.
- `readinto` returns when the buffer is full, or `LINGER` seconds after its first byte.
- While many bytes are expected, the kernel reports the socket as readable only when it has `GATHER`
  bytes, or the requested number if that is less (SO_RCVLOWAT).
- aiohttp may switch on the transport's reading again: an earlier response of the same connection
  does so if it is drained only now. The bytes that asyncio reads then come next, and its reading is
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

GATHER: Final = 1 << 20
"""Bytes per wake-up: an iteration of the event loop for fewer costs as much as receiving them.
Without it, a paced connection wakes the loop for 64 KiB."""

LINGER: Final = 0.02
"""Seconds that a partly filled buffer waits for more bytes."""

RECORD: Final = (16 << 10) + 512
"""The maximum length of a TLS record."""

ALL: Final = "all connections"
"""The key for which the fast path is disabled."""


class BodySocket:
    """The socket of a connection whose body is read, and the wait for its bytes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._socket: socket.socket = transport.get_extra_info("socket").dup()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[bool] | None = None
        self._gathers = 1

    @property
    def is_open(self) -> bool:
        """Whether it was not closed."""
        return self._socket.fileno() >= 0

    def fileno(self) -> int:
        """Its descriptor."""
        return self._socket.fileno()

    def recv_into(self, target: memoryview) -> int:
        """Reads the bytes that have arrived; returns their number, 0 if there are none yet.

        Raises ConnectionResetError at the end of the connection.
        """
        try:
            count = self._socket.recv_into(target)
        except BlockingIOError:
            return 0
        if not count:
            raise ConnectionResetError("the server closed the connection")
        return count

    async def readable(self, wanted: int, sure: int, until: float | None) -> bool:
        """Waits until the socket has about `wanted` bytes, of which `sure` will arrive; False at
        the time `until`.
        """
        if not self.is_open:
            raise ConnectionResetError("the connection was closed")
        # TLS adds less than 64 bytes to each of its records of 16 KiB
        enough = max(1, min(GATHER, wanted + 64 * (2 + wanted // (16 << 10)), sure - RECORD))
        if enough != self._gathers and not self._gathers < enough < GATHER:
            self._gather(enough)
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiter = waiter
        timer = None if until is None else self._loop.call_at(until, self.wake, False)
        self._loop.add_reader(self._socket.fileno(), self.wake, True)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if self.is_open:
                self._loop.remove_reader(self._socket.fileno())

    def wake(self, readable: bool) -> None:
        """Ends the wait."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(readable)

    def stop_gathering(self) -> None:
        """Reports the socket as readable from its first byte on, as other code expects."""
        if self._gathers > 1:
            self._gather(1)

    def close(self) -> None:
        """Closes this descriptor; the connection stays. May be called twice."""
        if self.is_open:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _gather(self, nbytes: int) -> None:
        with suppress(OSError):  # not every system supports it
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)
        self._gathers = nbytes


class SocketBody(asyncio.Protocol):
    """Reads a connection's socket in place of asyncio; an OSError if the process has no descriptor
    left.

    Its transport is the one over the socket. `remaining` bytes have not arrived yet; `finish` is
    called when they have, and the connection has returned to asyncio. An error that neither the
    network nor the server caused disables the fast path. Without `tls`, the transport has this
    protocol meanwhile.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        remaining: int,
        finish: Callable[[], None],
        fast_path: FastPath,
        tls: TLSReader | None = None,
    ) -> None:
        self._transport = transport
        self._handler = transport.get_protocol()
        self._finish = finish
        self._fast_path = fast_path
        self._tls = tls
        self._socket = BodySocket(transport)
        self._spilled = b""
        self._remaining = remaining
        self._empty = False
        transport.pause_reading()
        if tls is None:
            transport.set_protocol(self)
        else:
            tls.begin()

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes; 0 when all have arrived. If the connection ends before, it is a
        ConnectionError.
        """
        target = buffer[: self._remaining]
        filled = 0
        until = None
        try:
            while filled < len(target):
                if self._empty:
                    wanted = len(target) - filled
                    sure = self._remaining - filled
                    if not await self._socket.readable(wanted, sure, until):
                        break
                filled += self._read(target[filled:])
                self._empty = filled < len(target)
                if filled and until is None:
                    until = asyncio.get_running_loop().time() + LINGER
        except Exception as error:
            if not isinstance(error, OSError):  # TLS errors are OSErrors, too
                self._fast_path.disable(ALL, error)
            if not filled:
                raise ConnectionError(
                    f"the connection ended {self._remaining:,} bytes before the body"
                ) from error
        self._remaining -= filled
        if not self._remaining:
            self._release()
        return filled

    def give_back(self) -> None:
        """Closes the connection, and notifies its client. May be called twice."""
        if self._socket.is_open:
            self._leave_socket()
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Keeps bytes that asyncio read although its reading was off."""
        self._transport.pause_reading()
        self._spilled += data
        self._socket.wake(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wakes the reader, and forwards the event to aiohttp's protocol."""
        self._leave_socket()
        self._socket.wake(True)
        self._handler.connection_lost(exc)

    def _read(self, target: memoryview) -> int:
        if self._spilled:
            count = min(len(target), len(self._spilled))
            target[:count] = self._spilled[:count]
            self._spilled = self._spilled[count:]
            return count
        if self._tls is not None:
            return self._tls.read(target, self._socket.fileno())
        return self._socket.recv_into(target)

    def _release(self) -> None:
        """Returns the connection to aiohttp, unless other bytes followed the body."""
        is_empty = not self._spilled and (self._tls is None or self._tls.holds_none())
        if not self._socket.is_open or not is_empty:
            return
        self._socket.stop_gathering()
        self._leave_socket()
        if self._tls is not None:
            self._tls.release()
        self._transport.resume_reading()
        try:
            self._finish()  # aiohttp keeps the connection for the next request, if the server does
        except Exception as error:
            self._fast_path.disable(ALL, error)

    def _leave_socket(self) -> None:
        if self._tls is None and self._transport.get_protocol() is self:
            self._transport.set_protocol(self._handler)
        self._socket.close()
