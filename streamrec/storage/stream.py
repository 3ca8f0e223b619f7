"""ResumingStream: one object's bytes in order, whatever the connection does.

The contract, which the rest of streamrec relies on:

* The bytes are those of **one version** of the object: the first response pins version and size, each
  later request asks for that version, and what another one sends is never handed on.
* A body that breaks off, stalls, or ends early is continued at the byte reached. No byte is asked for twice
  beyond those that a broken connection still held, none is delivered twice.
* `readinto` waits for at least one byte and returns 0 only at the end. It never writes past the buffer, and
  touches it only while it is awaited: a cancelled call leaves no one writing behind its back.
* After an error the stream is closed, and so is its connection. Bytes before the error were delivered.
* Back-pressure is the caller's: nothing is read ahead of `readinto` but what the socket holds.
"""

from __future__ import annotations

import time

from streamrec.errors import ClosedError
from streamrec.storage.backend import Backend, Body, EmptyBody, ObjectInfo
from streamrec.storage.faults import Cause, TransientError, changed
from streamrec.storage.retry import Failures, RetryPolicy, within
from streamrec.storage.traffic import Traffic

__all__ = ["ResumingStream", "stop_of"]


def stop_of(info: ObjectInfo, end: int | None) -> int | None:
    """Where a stream ends: one past the last byte that is wanted and is there; None where nobody knows.

    >>> stop_of(ObjectInfo("x", 10, None), 20), stop_of(ObjectInfo("x", None, None), 20)
    (10, None)
    """
    if info.size is None:
        return None
    return info.size if end is None else min(end, info.size)


class ResumingStream:
    """A ByteStream over a backend; made by `open_stream`.

    Args:
        backend: Where to ask.
        policy: When to give up.
        path: The object's URL.
        start: First byte.
        end: One past the last byte, or None: to the end.
        version: The version to insist on, or None: the first one seen.
        traffic: What it shares with the store's other requests; None: nothing.
    """

    def __init__(
        self,
        backend: Backend,
        policy: RetryPolicy,
        path: str,
        start: int,
        end: int | None,
        version: str | None,
        traffic: Traffic | None = None,
    ) -> None:
        self.info = ObjectInfo(path, None, version)
        self.position = start
        self._backend = backend
        self._policy = policy
        self._end = end
        self._stop: int | None = None
        self._body: Body | None = None
        self._traffic = traffic or Traffic()
        self.tally = self._traffic.statistics.opened(path, self._traffic.tally)
        self._failures = Failures(policy, path, self.tally)
        self._idle_since = 0.0
        self._closed = False

    async def open(self) -> None:
        """Waits for the first response; from here on `info` tells size and version."""
        try:
            while self._body is None:
                try:
                    await self._connect()
                except TransientError as fault:
                    await self._failures.wait(fault, self.position, self._end)
        except BaseException:
            await self.aclose()
            raise
        self._idle_since = time.monotonic()

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes.

        Args:
            buffer: Where they go: writable, of one byte per item.

        Returns:
            How many bytes were written at the buffer's start; 0 at the end, or for an empty buffer.

        Raises:
            ClosedError: After `aclose`, or after an error.
            StorageError: The store failed for good.
        """
        if self._closed:
            raise ClosedError(f"{self.info.path}: the stream is closed; open a new one")
        if self._end is not None and len(buffer) > self._end - self.position:
            buffer = buffer[: max(0, self._end - self.position)]
        if not buffer or self.position == self._stop:
            return 0
        began = time.monotonic()
        try:
            while True:
                try:
                    body = self._body or await self._connect()
                    reading = body.readinto(buffer)
                    if not body.keeps_time:
                        reading = within(self._policy.stall_timeout, reading, "reading")
                    count = await reading
                    self._check_end(count)
                    break
                except TransientError as fault:
                    await self._drop()
                    await self._failures.wait(fault, self.position, self._end)
        except BaseException:
            await self.aclose()
            raise
        self.position += count
        self._failures.progress()
        now = time.monotonic()
        self.tally.block(count, now - began, began - self._idle_since)
        self._idle_since = now
        return count

    async def aclose(self) -> None:
        """Frees the connection. May be called twice, and with bytes left."""
        self._closed = True
        self._traffic.statistics.closed(self.tally)
        await self._drop()

    async def _connect(self) -> Body:
        """Sends one request from where we are, and pins what the answer tells."""
        info = self.info
        self.tally.request()
        asked = time.monotonic()
        self._body = body = await within(self._policy.request_timeout(), self._request(), "opening")
        self.tally.first_byte(time.monotonic() - asked)
        if _differs(info.version, body.info.version) or _differs(info.size, body.info.size):
            raise changed(info.path, self.position, self._end)
        self.info = ObjectInfo(info.path, body.info.size, body.info.version or info.version)
        self._stop = stop_of(self.info, self._end)
        return body

    async def _request(self) -> Body:
        if self.position == self._end:  # of an empty range only the object's size and version are asked for
            return EmptyBody(await self._backend.stat(self.info.path))
        return await self._backend.open(self.info.path, self.position, self._end, self.info.version)

    def _check_end(self, count: int) -> None:
        """A body that ends before the object does is a broken one."""
        if count == 0 and self._stop is not None and self.position < self._stop:
            raise TransientError(Cause.BROKEN, f"the body ended at byte {self.position:,} of {self._stop:,}")

    async def _drop(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            await body.aclose()


def _differs(pinned: object, found: object) -> bool:
    return pinned is not None and found is not None and pinned != found


async def open_stream(
    backend: Backend,
    policy: RetryPolicy,
    path: str,
    start: int,
    end: int | None,
    version: str | None,
    traffic: Traffic | None = None,
) -> ResumingStream:
    """Opens a stream: the first response has arrived when this returns."""
    stream = ResumingStream(backend, policy, path, start, end, version, traffic)
    await stream.open()
    return stream
