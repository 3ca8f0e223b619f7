"""A backend whose answers come late, in pieces, in any order, and broken, as a seed says. For the
parallel reading.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from streamrec.storage import RetryPolicy
from streamrec.storage.backend import Body, ObjectInfo
from streamrec.storage.backends.memory import MemoryBackend
from streamrec.storage.faults import Cause, TransientError, changed_error
from streamrec.storage.stream import ResumingStream
from streamrec.storage.traffic import Traffic

RETRY_AT_ONCE = RetryPolicy(attempts=60, backoff_base=0.0)
Watch = Callable[[], None]


@dataclass
class Asked:
    """One request: its range, and how many bytes of it were delivered."""

    start: int
    end: int | None
    given: int = 0
    closed: bool = False


@dataclass
class Scattered(MemoryBackend):
    """One object in memory.

    Args:
        data: Its bytes.
        seed: Of all that is drawn.
        broken: Share of requests that fail, or whose bodies break off.
        fails: From which byte on requests fail for good, and how.
        changes_at: After so many requests the object is another one.
        watch: Called whenever bytes are given.
        dries_up: After that many bytes, the body of one request for 4 MiB or more gives no more
            until `answered` is set.

    Attributes:
        waits: That request, once it has come.
    """

    data: bytes
    seed: int = 0
    broken: float = 0.0
    fails: tuple[int, Exception] | None = None
    changes_at: int | None = None
    watch: Watch = lambda: None
    dries_up: int | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    waits: Asked | None = None
    log: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """A body, after a while."""
        asked = Asked(start, end)
        self.log.append(asked)
        try:
            return await self._answer(asked, path, version)
        except BaseException:
            asked.closed = True
            raise

    async def _answer(self, asked: Asked, path: str, version: str | None) -> Body:
        await pause(self.draw)
        start, end = asked.start, asked.end
        now = "v2" if self.changes_at is not None and len(self.log) > self.changes_at else "v1"
        if version not in (None, now):
            raise changed_error(path, start, end)
        if self.fails is not None and start >= self.fails[0]:
            raise self.fails[1]
        if self.draw.random() < self.broken / 2:
            raise TransientError(Cause.SERVER, "busy")
        stop = min(len(self.data), end or len(self.data))
        length = (
            self.draw.randrange(stop - start) if self.draw.random() < self.broken else stop - start
        )
        return ScatteredBody(
            self, ObjectInfo(path, len(self.data), now), asked, start + length, stop
        )


class ScatteredBody:
    splits = True
    has_arrived = False

    def __init__(
        self, backend: Scattered, info: ObjectInfo, asked: Asked, breaks_at: int, stop: int
    ) -> None:
        self.info = info
        self._backend = backend
        self._asked = asked
        self._stop = stop
        self._breaks_at = breaks_at

    async def readinto(self, buffer: memoryview) -> int:
        """Some bytes, after a while."""
        await pause(self._backend.draw)
        buffer = await self._before_it_dries_up(buffer)
        position = self._asked.start + self._asked.given
        if position == self._breaks_at < self._stop:
            raise TransientError(Cause.BROKEN, "reset")
        count = min(len(buffer), self._breaks_at - position)
        if self._backend.draw.random() < 0.1:
            count = min(count, 1 + self._backend.draw.randrange(100_000))
        buffer[:count] = self._backend.data[position : position + count]
        self._asked.given += count
        self._backend.watch()
        return count

    async def _before_it_dries_up(self, buffer: memoryview) -> memoryview:
        backend, asked = self._backend, self._asked
        size = (asked.end or 0) - asked.start
        if backend.dries_up is None or backend.waits not in (None, asked) or size < 4 << 20:
            return buffer
        if asked.given < backend.dries_up:
            return buffer[: backend.dries_up - asked.given]
        backend.waits = asked
        await backend.answered.wait()
        return buffer

    async def aclose(self) -> None:
        """The log says so."""
        self._asked.closed = True


async def pause(draw: random.Random) -> None:
    """Lets others go first, a random number of times."""
    for _ in range(draw.choice((0, 0, 1, 2, 5, 20))):
        await asyncio.sleep(0)


def request_of(
    backend: Scattered, traffic: Traffic | None = None
) -> Callable[[int, int | None, str | None], ResumingStream]:
    """What makes the requests of a stream over it."""
    return lambda start, end, version: ResumingStream(
        backend, RETRY_AT_ONCE, "memory://x", start, end, version, traffic
    )


def fetching_tasks() -> list[asyncio.Task[object]]:
    """The tasks that fetch ranges."""
    return [task for task in asyncio.all_tasks() if task.get_name() == "streamrec range"]
