"""Streams deliver one object's bytes in order: a ResumingStream across broken connections, a
DirectStream of one body.

The contract, on which the rest of streamrec relies:

* The bytes are those of **one version** of the object: the first response pins version and size,
  each later request insists on that version, and bytes of another version are never delivered.
* After a body breaks off, stalls, or ends early, another request continues at the byte reached. No
  byte is requested twice except those that a broken connection still held, and none is delivered
  twice.
* `readinto` waits for at least one byte and returns 0 only at the end. It never writes past the
  buffer, and writes only while it is awaited: after a cancelled call nothing writes to the buffer
  any more.
* A second request for the same bytes races a late one (`request.py`).
* An error closes the stream and its connection. All bytes before the error have been delivered.
* The caller controls back-pressure: only the socket's buffer is read ahead of `readinto`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from streamrec.errors import ClosedError, ObjectChangedError, StorageError
from streamrec.storage.backend import Backend, Body, ObjectInfo
from streamrec.storage.faults import Cause, RetryPolicy, TransientError, changed_error
from streamrec.storage.request import HedgedRequest
from streamrec.storage.retry import Failures
from streamrec.storage.statistics import Statistics, Tally
from streamrec.storage.traffic import Traffic

CLOSED: Final = "{}: the stream is closed; open a new one"


def stop_of(info: ObjectInfo, end: int | None) -> int | None:
    """Returns the end of a stream: the smaller of the requested end and the object's size.

    None if that is unknown.

    >>> info = ObjectInfo("x", 10, None)
    >>> stop_of(info, 20), stop_of(info, 5), stop_of(info, None)
    (10, 5, 10)
    >>> stop_of(ObjectInfo("x", None, None), 20) is None
    True
    """
    if info.size is None:
        return None
    return info.size if end is None else min(end, info.size)


class Extent:
    """Which bytes of an object a stream delivers, and how far it is. Pure.

    Attributes:
        info: The object's size and version, as far as they are known.
        position: The next byte.
        end: One past the last byte that is wanted; None for all bytes.
        stop: One past the last byte that there is; None while the object's size is unknown.

    Examples:
        >>> extent = Extent(ObjectInfo("x", 10, None), start=4, end=20)
        >>> extent.stop, len(extent.fit(memoryview(bytearray(100)))), extent.advance(3)
        (10, 16, 3)
        >>> extent.is_early_end, extent.advance(3), extent.is_early_end
        (True, 3, False)
    """

    def __init__(self, info: ObjectInfo, start: int, end: int | None) -> None:
        self.info = info
        self.position = start
        self.end = end
        self.stop = stop_of(info, end)

    def learn(self, info: ObjectInfo) -> None:
        """Takes over what an answer says of the object."""
        self.info = info
        self.stop = stop_of(info, self.end)

    def move_end(self, end: int | None) -> None:
        """Moves the end to `end`, which is after the position; None for the end of the object."""
        self.end = end
        self.stop = stop_of(self.info, end)

    def fit(self, buffer: memoryview) -> memoryview:
        """The part of a buffer that may be filled: none at the end."""
        if self.position == self.stop:
            return buffer[:0]
        if self.end is not None and len(buffer) > self.end - self.position:
            return buffer[: max(0, self.end - self.position)]
        return buffer

    def advance(self, count: int) -> int:
        """Moves past bytes that have arrived; returns how many of them are wanted.

        The end may have been cut while they were on their way.
        """
        if self.end is not None:
            count = min(count, self.end - self.position)
        self.position += count
        return count

    @property
    def is_early_end(self) -> bool:
        """Whether a body that ends at the position lacks bytes."""
        return self.stop is not None and self.position < self.stop


class DirectStream:
    """A ByteStream over one body of a store whose bodies never stall.

    See `Backend.may_stall`; `open` opens it.
    """

    def __init__(
        self,
        backend: Backend,
        path: str,
        start: int,
        end: int | None,
        version: str | None,
        statistics: Statistics,
        tally: Tally,
        size: int | None = None,
    ) -> None:
        self.tally = tally
        self._extent = Extent(ObjectInfo(path, None, version), start, end)
        self._assumed = size
        self._backend = backend
        self._statistics = statistics
        self._body: Body | None = None
        self._idle_since = 0.0

    @property
    def info(self) -> ObjectInfo:
        """The object's size and version, as far as they are known."""
        return self._extent.info

    @property
    def position(self) -> int:
        """Absolute offset of the next byte."""
        return self._extent.position

    async def open(self) -> None:
        """Opens the body, which sets size and version in `info`; one attempt."""
        began = time.monotonic()
        extent = self._extent
        self._body = await self._backend.open(
            self.info.path, extent.position, extent.end, self.info.version
        )
        info = self._body.info
        extent.learn(replace(info, size=self._assumed) if info.size is None else info)
        self._statistics.add_stream(self.info.path, self.tally)
        self._idle_since = time.monotonic()
        self.tally.first_byte(self._idle_since - began)

    async def readinto(self, buffer: memoryview) -> int:
        """Reads the next bytes as `ResumingStream.readinto`."""
        if self._body is None:
            raise ClosedError(CLOSED.format(self.info.path))
        buffer = self._extent.fit(buffer)
        if not buffer:
            return 0
        began = time.monotonic()
        try:
            count = await self._body.readinto(buffer)
            if not count and self._extent.is_early_end:
                raise changed_error(self.info.path, self.position)
        except BaseException:
            await self.aclose()
            raise
        self._extent.advance(count)
        now = time.monotonic()
        self.tally.block(count, now - began, began - self._idle_since)
        self._idle_since = now
        return count

    async def aclose(self) -> None:
        """Closes the body, even if bytes are left. May be called twice."""
        body = self._body
        self._body = None
        if body is not None:
            self._statistics.remove_stream(self.tally)
            await body.aclose()


class ResumingStream:
    """A ByteStream over a backend; `open` sends its first request.

    Streams over ranges of one object share a tally. `size` is that of a listing, a manifest or an
    index; it counts where no answer has one, and the store is asked at the end where nothing has.
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
        tally: Tally | None = None,
        size: int | None = None,
    ) -> None:
        traffic = traffic or Traffic()
        self.tally = tally or Tally(traffic.tally)
        traffic.statistics.add_stream(path, self.tally)
        self._extent = Extent(ObjectInfo(path, None, version), start, end)
        self._request: HedgedRequest | None = None
        self._failures = Failures(policy, path, traffic, self.tally)
        self._make_request = partial(HedgedRequest, backend, self._failures, assumed=size)
        self._idle_since = time.monotonic()
        self._closed = False

    @property
    def info(self) -> ObjectInfo:
        """The object's size and version, as far as they are known."""
        return self._extent.info

    @property
    def position(self) -> int:
        """Absolute offset of the next byte."""
        return self._extent.position

    @property
    def splits(self) -> bool:
        """Whether parallel requests for other ranges are possible; known while one is open."""
        return self._request is not None and self._request.splits

    @property
    def stop(self) -> int | None:
        """One past the last byte that it delivers; None while the object's size is unknown."""
        return self._extent.stop

    def move_end(self, end: int | None) -> None:
        """Moves the end to `end`, which is after `position`; None for the end of the object."""
        self._extent.move_end(end)
        if self._request is not None:
            self._request.end = end

    def hedge(self) -> bool:
        """Takes one more request from the budget of hedges, because this one is slow.

        False if it may not be sent.
        """
        failures = self._failures
        return failures.traffic.hedge(failures.limiter, self.tally, others_on_time=True)

    async def open(self) -> None:
        """Waits for the first response, which sets size and version in `info`."""
        try:
            while self._request is None:
                try:
                    await self._connect()
                except TransientError as fault:
                    await self._wait_after(fault)
        except BaseException:
            await self.aclose()
            raise
        self._idle_since = time.monotonic()

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes, writes them at the buffer's start, and returns their number.

        0 only at the end.
        """
        if self._closed:
            raise ClosedError(CLOSED.format(self.info.path))
        buffer = self._extent.fit(buffer)
        if not buffer:
            return 0
        began = time.monotonic()
        try:
            while True:
                try:
                    count = await self._read_on(buffer)
                    break
                except TransientError as fault:
                    await self._wait_after(fault)
        except BaseException:
            await self.aclose()
            raise
        if self._failures.waiting:
            self._failures.progress()
        count = self._extent.advance(count)
        now = time.monotonic()
        self.tally.block(count, now - began, began - self._idle_since)
        self._idle_since = now
        return count

    async def _read_on(self, buffer: memoryview) -> int:
        """Reads from the open body, or from a new one, which must end at the end of the object."""
        request = self._request or await self._connect()
        count = await request.readinto(buffer)
        extent = self._extent
        if request.info is not extent.info:
            extent.learn(request.info)
        if not count and extent.stop is None:
            await self._ask_size(request)
        await self._check_end(request, count)
        if not count and extent.is_early_end:
            coding = f" (Content-Encoding: {self.info.encoding})" if self.info.encoding else ""
            reason = f"the body{coding} ended at byte {extent.position:,} of {extent.stop:,}"
            raise TransientError(Cause.BROKEN, reason)
        return count

    async def aclose(self) -> None:
        """Frees the connection, even if bytes are left. May be called twice."""
        if not self._closed:
            self._closed = True
            if self._failures.waiting:
                self._failures.progress()
            self._failures.traffic.statistics.remove_stream(self.tally)
        request, self._request = self._request, None
        if request is not None:
            await request.aclose()

    async def _connect(self) -> HedgedRequest:
        """Sends a request for the missing bytes, and waits for its response."""
        await self._failures.turn()
        self._request = request = self._make_request(self.info, self.position, self._extent.end)
        await request.open()
        self._extent.learn(request.info)
        self._failures.record_success()
        return request

    async def _ask_size(self, request: HedgedRequest) -> None:
        """Asks for the size after a body without a length has ended, perhaps too early.

        Many servers do not know the size of such an object, or refuse HEAD: then the end counts.
        """
        found = None
        with suppress(StorageError, TransientError, TimeoutError, LookupError, ValueError):
            async with asyncio.timeout(self._failures.policy.request_timeout()):
                found = await request.stat()
        if found is None:
            return
        if None not in (found.version, self.info.version) and found.version != self.info.version:
            raise changed_error(self.info.path, self.position, self._extent.end)
        if found.size is not None and found.size > self.position:
            self._extent.learn(replace(self.info, size=found.size))

    async def _check_end(self, request: HedgedRequest, count: int) -> None:
        """Refuses bytes after the end of the object, where only its known size shows that end.

        A listing may be older than a longer object, whose first records would count as all.
        """
        size = self.info.size
        position = self.position + count
        if size is None or position < size or not count:
            return
        if position == size and request.is_sized:
            return
        reason = f"the body has more bytes than the {size:,} of the object"
        if request.is_sized:
            raise TransientError(Cause.WRONG_ANSWER, reason)
        if position > size or await request.readinto(memoryview(bytearray(1))):
            raise ObjectChangedError(
                f"{reason} in its listing, manifest, index or HEAD: it was written since; to read "
                "it as it is now, make the Dataset again, or run the command again",
                self.info.path,
                size,
            )

    async def _wait_after(self, fault: TransientError) -> None:
        """Drops the failed request, and waits until the next one may be sent, or gives up."""
        request, self._request = self._request, None
        if request is not None:
            await request.aclose()
        await self._failures.wait(fault, self.position, self._extent.end)
