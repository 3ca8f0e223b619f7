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
* A body that ends before the object does (`Body.stop`) is followed by the next one, which is asked for while its
  bytes come, once the caller has read a megabyte: no first byte is waited for in between.
* Back-pressure is the caller's: nothing is read ahead of `readinto` but what the socket holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from streamrec.errors import ClosedError
from streamrec.storage.backend import Backend, Body, EmptyBody, ObjectInfo, Viewable
from streamrec.storage.reading.request_ahead import RequestAhead
from streamrec.storage.resilience.faults import Cause, TransientError, changed
from streamrec.storage.resilience.hedged_requests import HedgedRequests, MovingDeadline
from streamrec.storage.resilience.retry import Failures, RetryPolicy, within
from streamrec.storage.resilience.shield import finish
from streamrec.storage.resilience.traffic import Traffic
from streamrec.storage.telemetry.statistics import Tally

__all__ = ["ResumingStream", "stop_of"]

PROOF: Final = 1 << 20
"""Bytes that were read before a second request is sent: who reads the head of an object needs none."""


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
        self._body_stop: int | None = None
        self._ahead: RequestAhead | None = None
        self._proof = start + PROOF
        self._traffic = traffic or Traffic()
        self.tally = tally or Tally(self._traffic.tally)
        self.late: Callable[[], None] | None = None
        self._traffic.statistics.opened(path, self.tally)
        self._failures = Failures(policy, path, self._traffic, self.tally)
        self._idle_since = time.monotonic()
        self._reading: asyncio.Timeout | None = None
        self._rivals: HedgedRequests | None = None
        self._blocks_before = 0
        self._stalled = False
        hedging = self._traffic.hedging
        self._stall = MovingDeadline(hedging.stall_limit, hedging.stall_floor, self._race)
        self._silence = MovingDeadline(lambda: policy.stall_timeout, policy.stall_timeout, self._interrupt)
        self._closed = False

    @property
    def splits(self) -> bool:
        """Whether other ranges of the object can be asked for beside this one; known when it is open."""
        return self._body is not None and self._body.splits

    @property
    def views(self) -> bool:
        """Whether the object's bytes can be had without a copy, by `view`; known when it is open."""
        return isinstance(self._body, Viewable)

    def views_safely(self) -> bool:
        """Whether they can, and nothing that happens to the object meanwhile can end the process."""
        return self.views and cast("Viewable", self._body).views_safely()

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

    async def view(self, start: int, end: int) -> memoryview:
        """The object's bytes from `start` to `end`, without a copy, if it `views`; not to be mixed with readinto.

        Args:
            start: First byte; may lie before `position`, for bytes that are wanted once more.
            end: One past the last byte, at most the object's size; `position` from here on.

        Raises:
            ClosedError: After `aclose`, or after an error.
            StorageError: The store failed for good, or the object has no such bytes any more.
        """
        self._check_open()
        body = cast("Viewable", self._body)
        began = time.monotonic()
        try:
            data = await body.view(start, end)
        except BaseException:
            await self.aclose()
            raise
        self._came(end - self.position, began)
        return data

    async def confirm(self, start: int) -> None:
        """What was looked at, the last of it from `start` on, was what `view` should show, until now.

        Raises:
            StorageError: It was not, or may not have been: the object changed, or could not be read.
        """
        try:
            cast("Viewable", self._body).confirm(start)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Frees the connection. May be called twice, and with bytes left."""
        if not self._closed:
            self._closed = True
            self._stall.cancel()
            self._silence.cancel()
            self._traffic.statistics.closed(self.tally)
        await self._leave_ahead()
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
            if self.position == self._body_stop:
                await self._drop()
            body = self._body or await self._connect()
            await self._look_ahead()
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
        began = time.monotonic()
        self._blocks_before, self._stalled = self._traffic.hedging.blocks, False
        try:
            async with asyncio.timeout(None) as self._reading:
                self._stall.begin()
                self._silence.begin()
                try:
                    count = await body.readinto(buffer)
                finally:
                    self._reading = None
                    self._stall.end()
                    self._silence.end()
            self._traffic.hedging.block(time.monotonic() - began, count)
            return count
        except TimeoutError as error:
            if self._rivals is not None and await self._overtaken(self._rivals):
                return None
            reason = f"reading: nothing for {time.monotonic() - began:.1f} s"
            raise TransientError(Cause.TIMED_OUT, reason) from error
        finally:
            if self._rivals is not None:
                rivals, self._rivals = self._rivals, None
                await finish(rivals.settle())

    def _race(self) -> bool:
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
        if self._rivals is None or self._rivals.failed:
            self._rivals = HedgedRequests()
            self._rivals.answer.add_done_callback(self._answered)
        self._rivals.send(self._request(self.position))
        return True

    def _answered(self, answer: asyncio.Future[Body]) -> None:
        """A second request was: that ends the reading."""
        if _succeeded(answer):
            self._interrupt()

    def _interrupt(self) -> bool:
        """Ends the reading at once; it may have ended already, or be about to."""
        limit = self._reading
        if limit is not None and limit.when() is None:
            limit.reschedule(asyncio.get_running_loop().time())
        return False

    async def _overtaken(self, rival: HedgedRequests) -> bool:
        """Goes on with the second response, if there is one."""
        if not _succeeded(rival.answer):
            return False
        rival.taken = True
        self.tally.hedge_won()
        beaten = self._body
        try:
            self._accept(rival.answer.result())
        finally:
            if beaten is not None:
                await beaten.aclose()
        return True

    async def _look_ahead(self) -> None:
        """Asks for what follows the body that is read, where that ends early; and no more where all ends before."""
        start = self._body_stop
        if start is None:
            return
        if self._stop is None or start >= self._stop:
            await self._leave_ahead()
        elif self._ahead is None and self.position >= self._proof:
            self._ahead = RequestAhead(start, self._ask)

    async def _connect(self) -> Body:
        """Goes on with a response that begins where we are."""
        ahead = self._ahead
        if ahead is not None and ahead.start != self.position:
            await self._leave_ahead()
            ahead = None
        if ahead is None:
            await self._ask(self.position, self._accept)
        else:
            try:
                self._accept(await ahead.take())
            finally:
                await self._leave_ahead()
        return cast(Body, self._body)

    async def _leave_ahead(self) -> None:
        if self._ahead is not None:
            await self._ahead.aclose()
            self._ahead = None

    async def _ask(self, start: int, accept: Callable[[Body], None]) -> None:
        """Sends a request for the bytes from `start` on, and a second one where the first is late."""
        await self._failures.turn()
        requests = HedgedRequests()
        requests.send(self._request(start))
        hedging = self._traffic.hedging
        hedge = partial(self._hedge, requests, start)
        watch = MovingDeadline(hedging.first_byte_limit, hedging.first_byte_floor, hedge)
        watch.begin()
        try:
            body = await within(self._policy.request_timeout(), requests.answer, "opening")
            requests.taken = True
            accept(body)  # whoever accepts it closes it from here on: settling may be cancelled
        finally:
            watch.cancel()
            if not requests.settled:
                await finish(requests.settle())
        self._failures.limiter.answered()
        if requests.hedged:
            self.tally.hedge_won()

    def _hedge(self, requests: HedgedRequests, start: int) -> bool:
        hedging = self._traffic.hedging
        if requests.answer.done():
            return False
        if not self._traffic.hedge(self._failures.limiter, self.tally, beside_siblings=hedging.measured()):
            return not hedging.never  # others may have earned it a little later
        if self.late is not None and start == self.position:
            self.late()
        requests.send(self._request(start))
        return True

    def _accept(self, body: Body) -> None:
        """From here on this body is read; pins what it tells of the object."""
        info, self._body = self.info, body
        self._body_stop = body.stop
        if _differs(info.version, body.info.version) or _differs(info.size, body.info.size):
            raise changed(info.path, self.position, self._end)
        self.info = ObjectInfo(info.path, body.info.size, body.info.version or info.version)
        self._stop = stop_of(self.info, self._end)

    async def _request(self, start: int) -> Body:
        """One request for the bytes from `start` on, and how long it takes to be answered."""
        if start == self._end:  # of an empty range only the object's size and version are asked for
            return EmptyBody(await self._backend.stat(self.info.path))
        sent = time.monotonic()
        self._traffic.hedging.waits()
        try:
            body = await self._backend.open(self.info.path, start, self._end, self.info.version)
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
        body, self._body, self._body_stop = self._body, None, None
        if body is not None:
            await body.aclose()


def _succeeded(answer: asyncio.Future[Body]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


def _differs(pinned: object, found: object) -> bool:
    return pinned is not None and found is not None and pinned != found
