"""HedgedRequest: reads a range of an object by one request, and races it with another one when it
is late.

Rules:

* The store's timer checks a wait when its limit has passed; no hedging code runs before.
* When a response does not begin, or a body gives nothing, a second request for the missing bytes
  races it (`traffic` decides when), and one more if that is late as well. The first response wins;
  all other requests are cancelled, and their connections closed, before a call returns.
* The first request runs in the task of the caller, and only second ones have tasks of their own: an
  answer to one of these interrupts the wait for the first.
* A failed request leaves the others running; its error is raised if it was the last one, or if it
  is final, because a final error would be the same for all.
* A wait that exceeds the policy's time limit is a TransientError. Time in which the event loop was
  blocked does not count, because the bytes may have arrived meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from streamrec.storage.backend import Backend, Body, BytesBody, ObjectInfo
from streamrec.storage.faults import Cause, TransientError, changed_error
from streamrec.storage.retry import MIN_WARNING_SECONDS, Failures
from streamrec.storage.tasks import finish
from streamrec.storage.timer import Wait, WaitRules


class HedgedRequest:
    """A request for the bytes of an object from `start` to `end`; `open` sends it.

    Its stream's `failures` have the policy and the shared state. If the object's size or version in
    `info` is known, another one in the response is an ObjectChangedError; a response without a size
    has the known one, or else `assumed`, that of a listing, a manifest or an index. After `open`,
    `splits` says whether parallel requests for other ranges are possible.
    """

    def __init__(
        self,
        backend: Backend,
        failures: Failures,
        info: ObjectInfo,
        start: int,
        end: int | None,
        assumed: int | None = None,
    ) -> None:
        self.info = info
        self.end = end
        self.splits = False
        self._assumed = assumed
        self._backend = backend
        self._failures = failures
        self._position = start
        self._body: Body | None = None
        self._race: Race | None = None
        self._wait: Wait | None = None

    async def open(self) -> None:
        """Waits for the response, which sets size and version in `info`. After an error, close the
        request.
        """
        limit = self._failures.policy.request_timeout()
        self._wait = wait = self._wait_for_response(limit)
        try:
            with wait:
                body = await self._send_first()
            self._accept(body)
        except TimeoutError as error:
            if not await self._take_over():
                reason = f"opening: nothing for {limit:g} s"
                raise self._final_error() or TransientError(Cause.TIMED_OUT, reason) from error
        finally:
            self._wait = None
            if self._race is not None:
                await self._settle()  # this may be cancelled: `aclose` closes the body

    async def stat(self) -> ObjectInfo:
        """Asks for the object's size and version; one attempt."""
        return await self._backend.stat(self.info.path)

    @property
    def is_sized(self) -> bool:
        """Whether the response itself had the object's size."""
        return self._body is not None and self._body.info.size is not None

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes, and returns their number; 0 at the end of the range."""
        assert self._body is not None
        if self._body.has_arrived:  # all of a small object, as a rule: nothing can be late
            count = await self._body.readinto(buffer)
            self._position += count
            self._failures.traffic.hedging.block(0.0, count)
            return count
        hedging = self._failures.traffic.hedging
        if (wait := self._wait) is None:
            self._wait = wait = self._wait_for_bytes()
        while True:
            began = time.monotonic()
            try:
                with wait.begin(hedging.body.blocks):
                    count = await self._body.readinto(buffer)
                break
            except TimeoutError as error:
                if not await self._take_over():
                    reason = f"reading: nothing for {time.monotonic() - began:.1f} s"
                    raise TransientError(Cause.TIMED_OUT, reason) from error
            finally:
                if self._race is not None:
                    await self._settle()
        self._position += count
        hedging.block(time.monotonic() - began, count)
        return count

    async def aclose(self) -> None:
        """Frees the connection, even if bytes are left. May be called twice."""
        body, self._body = self._body, None
        if body is not None:
            await body.aclose()

    def _wait_for_response(self, limit: float) -> Wait:
        """A wait that ends with TimeoutError if a second request was answered meanwhile, or after
        `limit` seconds.
        """
        hedging = self._failures.traffic.hedging
        rules = WaitRules(
            limit=limit,
            floor=hedging.response.floor,
            late_after=hedging.response.seconds,
            on_late=self._hedge_response,
            on_silent=partial(self._failures.report_stall, reason="no answer yet"),
            silent_after=MIN_WARNING_SECONDS,
        )
        return Wait(self._failures.traffic.timer, rules)

    def _wait_for_bytes(self) -> Wait:
        """As `_wait_for_response`, for the next bytes of the body; it is used for each block.

        Its mark is the count of all blocks.
        """
        hedging = self._failures.traffic.hedging
        rules = WaitRules(
            limit=self._failures.policy.stall_timeout,
            floor=hedging.body.floor,
            late_after=hedging.body.seconds,
            on_late=self._hedge_body,
            on_silent=partial(self._failures.report_stall, reason="its body gives nothing"),
            silent_after=MIN_WARNING_SECONDS,
        )
        return Wait(self._failures.traffic.timer, rules)

    async def _send_first(self) -> Body:
        """Sends the first request; if it fails while a second one is in progress, waits for an
        answer to that.
        """
        try:
            return await self._send()
        except TransientError:
            if self._race is not None and not self._race.failed:
                await asyncio.wait([self._race.answer])
            raise

    async def _send(self) -> Body:
        """Sends one request, and records the seconds until its response."""
        if self._position == self.end:  # an empty range needs only the object's size and version
            return BytesBody(await self._backend.stat(self.info.path))
        response = self._failures.traffic.hedging.response
        sent = time.monotonic()
        response.waiting += 1
        try:
            body = await self._backend.open(
                self.info.path, self._position, self.end, self.info.version
            )
        finally:
            response.waiting -= 1
        seconds = time.monotonic() - sent
        self._failures.tally.first_byte(seconds)
        response.observe(seconds)
        return body

    def _accept(self, body: Body) -> None:
        """Uses this body from now on, and pins its size and version."""
        info, self._body = self.info, body
        self.splits = body.splits and self.is_sized  # without a size, it may not know ranges either
        for pinned, found in ((info.version, body.info.version), (info.size, body.info.size)):
            if pinned is not None and found is not None and pinned != found:
                raise changed_error(info.path, self._position, self.end)
        answer = body.info
        size = answer.size if answer.size is not None else info.size
        size = size if size is not None else self._assumed
        version = answer.version or info.version
        complete = (answer.path, answer.size, answer.version) == (info.path, size, version)
        # `replace` costs a small object 3 us, and an answer seldom lacks something.
        self.info = (
            answer if complete else replace(answer, path=info.path, size=size, version=version)
        )

    def _hedge_response(self, times: int, mark: int) -> bool:
        """Requests the same bytes once more, if that is allowed, because there is no response.

        Returns whether a later request may be allowed.
        """
        on_time = self._failures.traffic.hedging.response.is_measured()
        return self._hedge(others_on_time=on_time)

    def _hedge_body(self, times: int, blocks_before: int) -> bool:
        """As `_hedge_response`, because the body gives no bytes.

        Since its wait began, with this count of all blocks, it was late this many times before.
        """
        if times == 0:
            self._failures.tally.count("stalls")
        flows = self._failures.traffic.hedging.body.flows_since(blocks_before)
        return self._hedge(others_on_time=flows, stalled=True)

    def _hedge(self, *, others_on_time: bool, stalled: bool = False) -> bool:
        """Sends a second request if that is allowed; an answer to it interrupts the wait."""
        failures = self._failures
        again = not failures.traffic.hedging.never
        if not failures.traffic.hedge(
            failures.limiter, failures.tally, others_on_time=others_on_time, stalled=stalled
        ):
            return again
        failures.limiter.record_request(time.monotonic())
        failures.tally.request()
        if self._race is None or self._race.failed:
            self._race = Race()
            self._race.answer.add_done_callback(self._on_answer)
        self._race.send(self._send())
        return again

    def _on_answer(self, answer: asyncio.Future[Body]) -> None:
        """Ends the wait after an answer to a second request, or a final error before any
        response.
        """
        answered = _succeeded(answer) or self._final_error() is not None
        if answered and self._wait is not None:
            self._wait.interrupt()

    def _final_error(self) -> BaseException | None:
        """Returns the final error of a second request if the first was not answered: it would fail
        in the same way.
        """
        if self._body is not None or self._race is None or not self._race.answer.done():
            return None
        error = None if self._race.answer.cancelled() else self._race.answer.exception()
        return None if isinstance(error, TransientError) else error

    async def _take_over(self) -> bool:
        """Continues with the second response; False if there is none."""
        race = self._race
        beaten = self._body
        if race is None or not _succeeded(race.answer):
            return False
        race.taken = True
        self._failures.tally.count("hedges_won")
        try:
            self._accept(race.answer.result())
        finally:
            if beaten is not None:
                await beaten.aclose()
        return True

    async def _settle(self) -> None:
        """Ends the second requests that were not used."""
        race, self._race = self._race, None
        assert race is not None
        await finish(race.settle())


class Race:
    """Second requests that race the first one.

    `answer` is the first response to one of them, or the last error. `settle` leaves it open if it
    is `taken`.
    """

    def __init__(self) -> None:
        self.answer: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        self.taken = False
        self._running: set[asyncio.Task[Body]] = set()
        self._late: list[Body] = []

    def send(self, request: Coroutine[Any, Any, Body]) -> None:
        task = asyncio.get_running_loop().create_task(request)
        self._running.add(task)
        task.add_done_callback(self._done)

    @property
    def failed(self) -> bool:
        """Whether all of them failed with transient faults, so that nothing is left to settle."""
        answer = self.answer
        failed = (
            answer.done()
            and not answer.cancelled()
            and isinstance(answer.exception(), TransientError)
        )
        return failed and not self._running and not self._late

    async def settle(self) -> None:
        """Cancels and closes all requests except an answer that is in use."""
        answer = self.answer
        if (
            not answer.cancel()
            and not answer.cancelled()
            and answer.exception() is None
            and not self.taken
        ):
            self._late.append(answer.result())
        for task in self._running:
            task.cancel()
        while self._running:
            await asyncio.wait(self._running)
            await asyncio.sleep(0)  # their callbacks run afterwards
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
