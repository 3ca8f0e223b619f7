"""ExampleSource: takes the examples of a split from what the user gave, in pieces.

A sync iterable runs in one thread from its first example to its last, so it may use what belongs to
a thread (a connection of SQLite), and does not block the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from streamrec.arguments import describe_value
from streamrec.pipeline.engine.threads import Threads, run_in_thread


class ExampleSource:
    """The examples of one split; one task takes them.

    Args:
        split: The split's name, for errors.
        source: An iterable or async iterable of examples.
        threads: Where a sync iterable runs.

    Raises:
        TypeError: The source is something else.
    """

    def __init__(self, split: str, source: Any, threads: Threads) -> None:
        self._split = split
        self._threads = threads
        self._async: AsyncIterator[Any] | None = None
        self._sync: Iterator[Any] | None = None
        self._source = source
        self._waiting: list[Any] = []
        self._taken = 0
        if isinstance(source, str | bytes | Mapping) or not isinstance(
            source, Iterable | AsyncIterable
        ):
            raise TypeError(
                f"split {split!r} is {describe_value(source)}: pass an iterable of examples, which "
                "are dicts of features"
            )

    async def peek(self, count: int) -> list[Any]:
        """Up to `count` examples, which the next `take` gives again."""
        self._waiting += await self._next(count - len(self._waiting))
        return self._waiting[:count]

    async def take(self, count: int) -> list[Any]:
        """The next `count` examples; fewer at the end, and none after it."""
        if self._waiting:
            taken = self._waiting[:count]
            self._waiting = self._waiting[count:]
            return taken
        return await self._next(count)

    async def aclose(self) -> None:
        """Ends an iterator that has not come to its end."""
        if (close := getattr(self._async, "aclose", None)) is not None:
            await close()
        elif (end := getattr(self._sync, "close", None)) is not None:
            # One that still works, after a cancellation, ends with its thread.
            with suppress(ValueError):
                await run_in_thread(self._threads, end)

    async def _next(self, count: int) -> list[Any]:
        try:
            # A Dataset is both: its async side needs no other thread.
            if isinstance(self._source, AsyncIterable):
                return await self._next_async(count)
            return await run_in_thread(self._threads, lambda: self._next_sync(count))
        except Exception as error:
            error.add_note(
                f"This came from the examples of split {self._split!r}, after {self._taken:,}"
            )
            raise

    async def _next_async(self, count: int) -> list[Any]:
        if self._async is None:
            self._async = aiter(self._source)
        found: list[Any] = []
        while len(found) < count:
            try:
                found.append(await anext(self._async))
            except StopAsyncIteration:
                break
            self._taken += 1
        return found

    def _next_sync(self, count: int) -> list[Any]:
        if self._sync is None:
            self._sync = iter(self._source)
        found = list(islice(self._sync, count))
        self._taken += len(found)
        return found
