"""ResumingStream: one object's bytes in order, whatever the connection does.

The contract, which the rest of streamrec relies on:

* The bytes are those of **one version** of the object: the first response pins version and size, each
  later request asks for that version, and what another one sends is never handed on.
* A body that breaks off, stalls, or ends early is continued at the byte reached. No byte is asked for twice
  beyond those that a broken connection still held, none is delivered twice.
* `readinto` waits for at least one byte and returns 0 only at the end. It never writes past the buffer, and
  touches it only while it is awaited: a cancelled call leaves no one writing behind its back.
* A response that does not begin, and a body that stands still, is raced by a second request for the bytes that
  are missing (`hedging` says when), and by one more where that is late as well; the one that comes first is read,
  the other's connection is closed.
* After an error the stream is closed, and so is its connection. Bytes before the error were delivered.
* Back-pressure is the caller's: nothing is read ahead of `readinto` but what the socket holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from streamrec.errors import ClosedError
from streamrec.storage.backend import Backend, Body, EmptyBody, ObjectInfo
from streamrec.storage.faults import Cause, TransientError, changed
from streamrec.storage.hedging import HedgedRequests, MovingDeadline
from streamrec.storage.retry import Failures, RetryPolicy
from streamrec.storage.statistics import Tally
from streamrec.storage.tasks import finish
from streamrec.storage.traffic import Traffic

__all__ = ["ResumingStream", "stop_of"]

T = TypeVar("T")


def stop_of(info: ObjectInfo, end: int | None) -> int | None:
    """Where a stream ends: one past the last byte that is wanted and is there; None where nobody knows.

    >>> stop_of(ObjectInfo("x", 10, None), 20), stop_of(ObjectInfo("x", None, None), 20)
    (10, None)
    """
    if info.size is None:
        return None
    return info.size if end is None else min(end, info.size)


class ResumingStream:
    """A ByteStream over a backend; not open yet.

    Args:
        backend: Where to ask.
        policy: When to give up.
        path: The object's URL.
        start: First byte.
        end: One past the last byte, or None: to the end.
        version: The version to insist on, or None: the first one seen.
        traffic: What it shares with the store's other requests; None: nothing.
        tally: Where it is counted; None: in one of its own. Streams over ranges of one object share one.

    Attributes:
        info: The object, as far as it is known.
        position: The next byte.
        tally: Where it is counted.
        late: Called where the first byte is late, before it is asked for once more; it may `cut` what is asked for.
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
    ) -> None:
        self.info = ObjectInfo(path, None, version)
        self.position = start
        self._backend = backend
        self._policy = policy
        self._end = end
        self._stop: int | None = None
        self._body: Body | None = None
        self._traffic = traffic or Traffic()
        self.tally = tally or Tally(self._traffic.tally)
        self.late: Callable[[], None] | None = None
        self._traffic.statistics.opened(path, self.tally)
        self._failures = Failures(policy, path, self._traffic, self.tally)
        self._idle_since = time.monotonic()
        self._waiting: asyncio.Timeout | None = None
        self._rivals: HedgedRequests | None = None
        self._blocks_before = 0
        self._stalled = False
        self._closed = False

    @property
    def splits(self) -> bool:
        """Whether other ranges of the object can be asked for beside this one; known when it is open."""
        return self._body is not None and self._body.splits

    def cut(self, end: int) -> None:
        """It ends at `end` now: after `position`, and before where it would have ended."""
        self._end = end
        self._stop = stop_of(self.info, end)

    def affords(self) -> bool:
        """Whether one more request may be made because this one is slow; it is counted and paid for as a hedge."""
        if not self._traffic.affords(self._failures.limiter, beside_siblings=True):
            return False
        self.tally.hedge()
        return True

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
        self._check_open()
        if self._end is not None and len(buffer) > self._end - self.position:
            buffer = buffer[: max(0, self._end - self.position)]
        if not buffer or self.position == self._stop:
            return 0
        began = time.monotonic()
        try:
            while (count := await self._step(buffer)) is None:
                pass
        except BaseException:
            await self.aclose()
            raise
        if self._end is not None:
            count = min(count, self._end - self.position)  # it was cut meanwhile
        self._failures.progress()
        self._came(count, began)
        return count

    async def aclose(self) -> None:
        """Frees the connection. May be called twice, and with bytes left."""
        if not self._closed:
            self._closed = True
            self._traffic.statistics.closed(self.tally)
        await self._drop()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.info.path}: the stream is closed; open a new one")

    def _came(self, count: int, began: float) -> None:
        """So many bytes more were delivered, to a reader who waited for them since then."""
        self.position += count
        now = time.monotonic()
        self.tally.block(count, now - began, began - self._idle_since)
        self._idle_since = now

    async def _step(self, buffer: memoryview) -> int | None:
        """Reads once; None where that failed, or another response was faster, and is to be done again."""
        try:
            body = self._body or await self._connect()
            watched = self._backend.remote or not body.keeps_time
            count = await (self._read(body, buffer) if watched else body.readinto(buffer))
            if count is not None:
                self._check_end(count)
        except TransientError as fault:
            await self._drop()
            await self._failures.wait(fault, self.position, self._end)
            return None
        return count

    async def _read(self, body: Body, buffer: memoryview) -> int | None:
        """Reads from the network, within the time limit.

        A body that stands still is raced by a second request; None if that won.
        """
        began, hedging = time.monotonic(), self._traffic.hedging
        self._blocks_before, self._stalled = hedging.blocks, False
        try:
            count = await self._watched(
                body.readinto(buffer),
                hedging.stall_limit,
                hedging.stall_floor,
                self._hedge_reading,
                self._policy.stall_timeout,
            )
        except TimeoutError as error:
            if await self._overtaken():
                return None
            reason = f"reading: nothing for {time.monotonic() - began:.1f} s"
            raise TransientError(Cause.TIMED_OUT, reason) from error
        finally:
            await self._settle()
        hedging.block(time.monotonic() - began, count)
        return count

    async def _connect(self) -> Body:
        """Sends a request from where we are, and a second one where the first is late."""
        await self._failures.turn()
        hedging, most = self._traffic.hedging, self._policy.request_timeout()
        try:
            body = await self._watched(
                self._first_request(),
                hedging.first_byte_limit,
                hedging.first_byte_floor,
                self._hedge_opening,
                most,
            )
            self._accept(body)
        except TimeoutError as error:
            if not await self._overtaken():
                raise self._refused() or TransientError(Cause.TIMED_OUT, f"opening: nothing for {most:g} s") from error
        finally:
            await self._settle()  # the body is ours to close already: this may be cancelled
        self._failures.limiter.answered()
        assert self._body is not None
        return self._body

    async def _watched(
        self,
        call: Coroutine[Any, Any, T],
        limit: Callable[[], float],
        floor: float,
        late: Callable[[], bool],
        most: float,
    ) -> T:
        """Awaits a response or its bytes.

        Args:
            call: What is awaited.
            limit: Seconds after which it is late.
            floor: The least that these can be.
            late: Called then.
            most: Seconds after which it is given up.

        Raises:
            TimeoutError: A second request was answered meanwhile, or `most` has passed.
        """
        timer = self._traffic.timer
        deadlines = (
            MovingDeadline(timer, limit, floor, late),
            MovingDeadline(timer, lambda: most, most, self._interrupt),
        )
        async with asyncio.timeout(None) as self._waiting:
            for deadline in deadlines:
                deadline.begin()
            try:
                return await call
            finally:
                self._waiting = None
                for deadline in deadlines:
                    deadline.end()

    async def _first_request(self) -> Body:
        """A request; where it fails while a second one is under way, that one may still be answered, and ends this."""
        try:
            return await self._request()
        except TransientError:
            if self._rivals is not None and not self._rivals.failed:
                await asyncio.wait([self._rivals.answer])
            raise

    def _hedge_opening(self) -> bool:
        """The response is late: asks once more; an answer interrupts the waiting."""
        hedging = self._traffic.hedging
        if not self._traffic.hedge(self._failures.limiter, self.tally, beside_siblings=hedging.measured()):
            return not hedging.never  # others may have earned it a little later
        if self.late is not None:
            self.late()
        self._send_rival()
        return True

    def _hedge_reading(self) -> bool:
        """The body stands still: asks for the rest once more; an answer interrupts the reading.

        Where no request is allowed now, it may be later: others earn it meanwhile.
        """
        hedging = self._traffic.hedging
        if not self._stalled:
            self._stalled = True
            self.tally.stall()
        flows = hedging.flows_since(self._blocks_before)
        if not self._traffic.hedge(self._failures.limiter, self.tally, beside_siblings=flows, stalled=True):
            return not hedging.never
        self._send_rival()
        return True

    def _send_rival(self) -> None:
        if self._rivals is None or self._rivals.failed:
            self._rivals = HedgedRequests()
            self._rivals.answer.add_done_callback(self._answered)
        self._rivals.send(self._request())

    def _answered(self, answer: asyncio.Future[Body]) -> None:
        """A second request was: that ends the waiting, and so does a final error where nothing has come yet."""
        if _succeeded(answer) or self._refused() is not None:
            self._interrupt()

    def _refused(self) -> BaseException | None:
        """The final error of a second request, where the first was not answered: it would come to the same."""
        if self._body is not None or self._rivals is None or not self._rivals.answer.done():
            return None
        error = None if self._rivals.answer.cancelled() else self._rivals.answer.exception()
        return None if isinstance(error, TransientError) else error

    def _interrupt(self) -> bool:
        """Ends the waiting at once; it may have ended already, or be about to."""
        limit = self._waiting
        if limit is not None and limit.when() is None:
            limit.reschedule(asyncio.get_running_loop().time())
        return False

    async def _overtaken(self) -> bool:
        """Goes on with the second response, if there is one."""
        rivals, beaten = self._rivals, self._body
        if rivals is None or not _succeeded(rivals.answer):
            return False
        rivals.taken = True
        self.tally.hedge_won()
        try:
            self._accept(rivals.answer.result())
        finally:
            if beaten is not None:
                await beaten.aclose()
        return True

    async def _settle(self) -> None:
        """Ends the second requests that were not taken."""
        if self._rivals is not None:
            rivals, self._rivals = self._rivals, None
            await finish(rivals.settle())

    def _accept(self, body: Body) -> None:
        """From here on this body is read; pins what it tells of the object."""
        info, self._body = self.info, body
        if _differs(info.version, body.info.version) or _differs(info.size, body.info.size):
            raise changed(info.path, self.position, self._end)
        self.info = ObjectInfo(info.path, body.info.size, body.info.version or info.version)
        self._stop = stop_of(self.info, self._end)

    async def _request(self) -> Body:
        """One request, and how long it takes to be answered."""
        if self.position == self._end:  # of an empty range only the object's size and version are asked for
            return EmptyBody(await self._backend.stat(self.info.path))
        sent = time.monotonic()
        self._traffic.hedging.waits()
        try:
            body = await self._backend.open(self.info.path, self.position, self._end, self.info.version)
        finally:
            self._traffic.hedging.waited()
        seconds = time.monotonic() - sent
        self.tally.first_byte(seconds)
        self._traffic.hedging.first_byte(seconds)
        return body

    def _check_end(self, count: int) -> None:
        """A body that ends before the object does is a broken one."""
        if count == 0 and self._stop is not None and self.position < self._stop:
            raise TransientError(Cause.BROKEN, f"the body ended at byte {self.position:,} of {self._stop:,}")

    async def _drop(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            await body.aclose()


def _succeeded(answer: asyncio.Future[Body]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


def _differs(pinned: object, found: object) -> bool:
    return pinned is not None and found is not None and pinned != found
