"""HedgedRequest: bytes of an object by one request; where that is late, by another one for the same bytes.

Rules:

* The store's timer looks at a wait when its limit has passed; nothing of what follows runs before.
* A response that does not begin, and a body that gives nothing, is raced by a second request for the bytes that are
  missing (`traffic` says when), and by one more where that is late as well. The first response is read; all other
  requests are cancelled, and their connections closed, before a call returns.
* The first request runs in the task of the caller, and only second ones have tasks of their own: an answer to one
  interrupts the wait for the first.
* A request that fails leaves the others running; its error counts when it was the last one, or when it is final,
  because a final error would be the same for all.
* A wait that exceeds the policy's time limit is a TransientError. Time in which the event loop was blocked does not
  count: what is awaited may have come long ago.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from streamrec.storage.backend import Backend, Body, BytesBody, ObjectInfo
from streamrec.storage.faults import Cause, TransientError, changed_error
from streamrec.storage.retry import MIN_WARNING_SECONDS, Failures
from streamrec.storage.tasks import finish

__all__ = ["HedgedRequest", "Race"]

T = TypeVar("T")


class HedgedRequest:
    """The bytes of an object from `start` on; not sent yet.

    Args:
        failures: Those of the stream that it is for, with its policy and what its requests share.
        info: What is known of the object, which the response must agree with.
        end: One past the last byte, or None: to the end.

    Attributes:
        info: The object, as far as it is known.
        end: One past the last byte that a second request asks for.
        splits: Whether other ranges of the object can be asked for at the same time; known when it is open.
    """

    def __init__(
        self,
        backend: Backend,
        failures: Failures,
        info: ObjectInfo,
        start: int,
        end: int | None,
    ) -> None:
        self.info = info
        self.end = end
        self.splits = False
        self._backend = backend
        self._failures = failures
        self._policy = failures.policy
        self._traffic = failures.traffic
        self._tally = failures.tally
        self._position = start
        self._body: Body | None = None
        self._race: Race | None = None
        self._waiting: asyncio.Timeout | None = None
        self._began = self._since = self._limit = 0.0
        self._blocks_before = 0
        self._stalled = False

    async def open(self) -> None:
        """Waits for the response; from here on `info` tells size and version.

        Raises:
            TransientError: It failed, or took too long. Close it.
            StorageError: Final. Likewise.
        """
        limit = self._policy.request_timeout()
        try:
            self._accept(await self._wait(self._first(), self._traffic.hedging.first_byte_floor, limit))
        except TimeoutError as error:
            if not await self._overtaken():
                reason = f"opening: nothing for {limit:g} s"
                raise self._final_error() or TransientError(Cause.TIMED_OUT, reason) from error
        finally:
            if self._race is not None:
                await self._settle()  # a body is ours to close already: this may be cancelled

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes; 0 where the response ends.

        Raises:
            TransientError: It failed, or took too long. Close it.
            StorageError: Final. Likewise.
        """
        assert self._body is not None
        if not self._backend.remote and self._body.keeps_time:
            return await self._body.readinto(buffer)
        hedging = self._traffic.hedging
        while True:
            began = time.monotonic()
            self._blocks_before, self._stalled = hedging.blocks, False
            try:
                count = await self._wait(self._body.readinto(buffer), hedging.stall_floor, self._policy.stall_timeout)
                break
            except TimeoutError as error:
                if not await self._overtaken():
                    reason = f"reading: nothing for {time.monotonic() - began:.1f} s"
                    raise TransientError(Cause.TIMED_OUT, reason) from error
            finally:
                if self._race is not None:
                    await self._settle()
        self._position += count
        hedging.block(time.monotonic() - began, count)
        return count

    async def aclose(self) -> None:
        """Frees the connection. May be called twice, and with bytes left."""
        body, self._body = self._body, None
        if body is not None:
            await body.aclose()

    async def _wait(self, call: Coroutine[Any, Any, T], floor: float, limit: float) -> T:
        """Awaits a response or its bytes, which are not late within `floor` seconds.

        Raises:
            TimeoutError: A second request was answered meanwhile, or `limit` has passed.
        """
        timer = self._traffic.timer
        self._limit = limit
        async with asyncio.timeout(None) as self._waiting:
            self._began = self._since = asyncio.get_running_loop().time()
            timer.add(self._look, self._began + min(floor, limit))
            try:
                return await call
            finally:
                self._waiting = None
                timer.remove(self._look)

    async def _first(self) -> Body:
        """A request; where it fails while a second one is under way, that one may still be answered, and ends this."""
        try:
            return await self._send()
        except TransientError:
            if self._race is not None and not self._race.failed:
                await asyncio.wait([self._race.answer])
            raise

    async def _send(self) -> Body:
        """One request, and how long it takes to be answered."""
        if self._position == self.end:  # of an empty range only the object's size and version are asked for
            return BytesBody(await self._backend.stat(self.info.path))
        hedging, sent = self._traffic.hedging, time.monotonic()
        hedging.waiting += 1
        try:
            body = await self._backend.open(self.info.path, self._position, self.end, self.info.version)
        finally:
            hedging.waiting -= 1
        seconds = time.monotonic() - sent
        self._tally.first_byte(seconds)
        hedging.first_byte(seconds)
        return body

    def _accept(self, body: Body) -> None:
        """This body is read from here on; pins the size and version that it has."""
        info, self._body, self.splits = self.info, body, body.splits
        if _differ(info.version, body.info.version) or _differ(info.size, body.info.size):
            raise changed_error(info.path, self._position, self.end)
        self.info = ObjectInfo(info.path, body.info.size, body.info.version or info.version)

    def _look(self, now: float, blocked: float) -> float | None:
        """The timer's look at a wait: where it is late a second request is sent, past its time limit it ends."""
        self._began += blocked
        self._since += blocked
        if now - self._began >= self._limit - 0.001:
            self._interrupt()
            return None
        hedging = self._traffic.hedging
        limit, floor = hedging.stall_limit, hedging.stall_floor
        if self._body is None:
            limit, floor = hedging.first_byte_limit(), hedging.first_byte_floor
        waited = now - self._since
        if waited < limit - 0.001:
            again = now + min(limit - waited, waited)  # others may teach another limit meanwhile
        else:
            self._hedge()
            self._since = now  # the second request may be late as well, or be allowed when others have earned it
            again = math.inf if hedging.never else now + floor
        warning = self._began + MIN_WARNING_SECONDS
        if now >= warning - 0.001:
            reason = "no answer yet" if self._body is None else "its body gives nothing"
            self._failures.stalled(now - self._began, reason)
            warning = math.inf
        return min(again, warning, self._began + self._limit)

    def _hedge(self) -> None:
        """Asks for the same bytes once more, where that is allowed; an answer interrupts the wait."""
        traffic = self._traffic
        limiter, hedging = traffic.limiter(self.info.path), traffic.hedging
        if self._body is None:
            allowed = traffic.hedge(limiter, self._tally, beside_siblings=hedging.is_measured())
        else:
            if not self._stalled:
                self._stalled = True
                self._tally.count("stalls")
            flows = hedging.flows_since(self._blocks_before)
            allowed = traffic.hedge(limiter, self._tally, beside_siblings=flows, stalled=True)
        if allowed:
            if self._race is None or self._race.failed:
                self._race = Race()
                self._race.answer.add_done_callback(self._answered)
            self._race.send(self._send())

    def _answered(self, answer: asyncio.Future[Body]) -> None:
        """A second request was: that ends the wait, and so does a final error where nothing has come yet."""
        if _succeeded(answer) or self._final_error() is not None:
            self._interrupt()

    def _final_error(self) -> BaseException | None:
        """That of a second request, where the first was not answered: it would end in the same way."""
        if self._body is not None or self._race is None or not self._race.answer.done():
            return None
        error = None if self._race.answer.cancelled() else self._race.answer.exception()
        return None if isinstance(error, TransientError) else error

    def _interrupt(self) -> None:
        """Ends the wait at once; it may have ended already, or be about to."""
        if self._waiting is not None and self._waiting.when() is None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def _overtaken(self) -> bool:
        """Goes on with the second response, if there is one."""
        race, beaten = self._race, self._body
        if race is None or not _succeeded(race.answer):
            return False
        race.taken = True
        self._tally.count("hedges_won")
        try:
            self._accept(race.answer.result())
        finally:
            if beaten is not None:
                await beaten.aclose()
        return True

    async def _settle(self) -> None:
        """Ends the second requests that were not taken."""
        race, self._race = self._race, None
        assert race is not None
        await finish(race.settle())


class Race:
    """Requests that run against each other.

    Attributes:
        answer: The first response, or the error that all came to.
        taken: Set by who took the answer: `settle` then leaves it open.
    """

    def __init__(self) -> None:
        self.answer: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        self.taken = False
        self._running: set[asyncio.Task[Body]] = set()
        self._late: list[Body] = []

    def send(self, request: Coroutine[Any, Any, Body]) -> None:
        """Sends one more request."""
        task = asyncio.get_running_loop().create_task(request)
        self._running.add(task)
        task.add_done_callback(self._done)

    @property
    def failed(self) -> bool:
        """Whether all of them failed, in a way that another one may not; nothing is left to settle then."""
        answer = self.answer
        failed = answer.done() and not answer.cancelled() and isinstance(answer.exception(), TransientError)
        return failed and not self._running and not self._late

    async def settle(self) -> None:
        """Cancels and closes all but an answer that was taken."""
        answer = self.answer
        if not answer.cancel() and not answer.cancelled() and answer.exception() is None and not self.taken:
            self._late.append(answer.result())
        for task in self._running:
            task.cancel()
        while self._running:
            await asyncio.wait(self._running)
            await asyncio.sleep(0)  # their callbacks come after
        while self._late:
            await self._late.pop().aclose()

    def _done(self, task: asyncio.Task[Body]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            return
        if self.answer.done():
            if error is None:
                self._late.append(task.result())
        elif error is None:
            self.answer.set_result(task.result())
        elif not self._running or not isinstance(error, TransientError):
            self.answer.set_exception(error)


def _succeeded(answer: asyncio.Future[Body]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


def _differ(pinned: object, found: object) -> bool:
    return pinned is not None and found is not None and pinned != found
