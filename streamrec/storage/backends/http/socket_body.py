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
- While it waits, the loop's callback itself reads the socket, so that the reader's task goes on
  once a buffer, not once a wake-up.
- While many bytes are expected, the kernel reports the socket as readable only when it has `GATHER`
  bytes, or the requested number if that is less (SO_RCVLOWAT).
- aiohttp may switch on the transport's reading again: an earlier response of the same connection
  does so if it is drained only now. The bytes that asyncio reads then come next, and its reading is
  switched off again.
"""

from __future__ import annotations

import asyncio
import math
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

SLACK: Final = 0.001
"""Seconds by which the event loop's timers may be early."""

_NOTHING: Final = memoryview(b"")

ALL: Final = "all connections"
"""The key for which the fast path is disabled."""


class BodySocket:
    """The socket of a connection whose body is read, and the wait for its bytes.

    The event loop watches it from the first wait on, until it has bytes that no wait wants: to
    begin and end to watch costs two system calls, and most waits follow each other.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._socket: socket.socket = transport.get_extra_info("socket").dup()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._receive: Callable[[], bool]  # of the wait
        self._watched = False
        self._gathers = 1
        self._until = math.inf
        self._timer: asyncio.TimerHandle | None = None

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

    def expect(self, wanted: int, sure: int) -> None:
        """Reports the socket as readable when it has about `wanted` bytes, of which `sure` will
        arrive.
        """
        # TLS adds less than 64 bytes to each of its records of 16 KiB
        enough = max(1, min(GATHER, wanted + 64 * (2 + wanted // (16 << 10)), sure - RECORD))
        if enough != self._gathers and not self._gathers < enough < GATHER:
            self._gather(enough)

    def linger(self) -> None:
        """Ends the wait `LINGER` seconds after the first call; it has bytes."""
        if self._until == math.inf:
            self._until = self._loop.time() + LINGER
            if self._timer is None:  # one of an earlier wait looks at the time again
                self._timer = self._loop.call_at(self._until, self._expire)

    async def wait(self, receive: Callable[[], bool]) -> None:
        """Calls `receive` whenever there are bytes, until it says that these are enough."""
        if not self.is_open:
            raise ConnectionResetError("the connection was closed")
        self._receive = receive
        self._waiter = waiter = self._loop.create_future()
        if not self._watched:
            self._watched = True
            self._loop.add_reader(self._socket.fileno(), self.wake)
        try:
            await waiter
        finally:
            self._waiter = None
            self._until = math.inf

    def wake(self) -> None:
        """Lets the wait receive what there is; without one, the loop watches no more."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            self._unwatch()
            return
        try:
            if self._receive():
                waiter.set_result(None)
        except Exception as error:
            waiter.set_exception(error)

    def stop_gathering(self) -> None:
        """Reports the socket as readable from its first byte on, as other code expects."""
        if self._gathers > 1:
            self._gather(1)

    def close(self) -> None:
        """Closes this descriptor; the connection stays. May be called twice."""
        if self.is_open:
            self._unwatch()
            if self._timer is not None:
                self._timer.cancel()
            self._socket.close()

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_reader(self._socket.fileno())

    def _expire(self) -> None:
        """Ends the wait if its time is over.

        The timer goes on from wait to wait: to make and cancel one for each block costs more.
        """
        self._timer = None
        if self._until == math.inf:
            return
        if self._loop.time() < self._until - SLACK:
            self._timer = self._loop.call_at(self._until, self._expire)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

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
        self._target = _NOTHING
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
        if not target:
            return 0
        self._target = target
        try:
            if self._empty:
                self._socket.expect(len(target), self._remaining)
            if self._empty or not self._receive():
                await self._socket.wait(self._receive)
        except Exception as error:
            if not isinstance(error, OSError):  # TLS errors are OSErrors, too
                self._fast_path.disable(ALL, error)
            if len(self._target) == len(target):
                raise ConnectionError(
                    f"the connection ended {self._remaining:,} bytes before the body"
                ) from error
        finally:
            filled = len(target) - len(self._target)
            self._target = _NOTHING
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
        self._socket.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wakes the reader, and forwards the event to aiohttp's protocol."""
        self._leave_socket()
        self._socket.wake()
        self._handler.connection_lost(exc)

    def _receive(self) -> bool:
        """Reads what has arrived into the buffer of the waiting reader; returns whether that is
        full.
        """
        count = self._read(self._target)
        self._remaining -= count
        self._target = self._target[count:]
        missing = len(self._target)
        self._empty = missing > 0
        if missing:
            self._socket.expect(missing, self._remaining)
            if count:
                self._socket.linger()
        return not missing

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
