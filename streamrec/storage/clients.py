"""Shared clients: one per event loop and set of options.

Creating an S3 client takes 50 to 85 ms of processor time, so a service that opens a shard for each
request must not create a client each time.

Rules:
- A client belongs to its event loop and to its options: protocol, storage options, retry policy,
  filesystem, and the environment variables that clients read. Different credentials never share a
  client.
- Concurrent callers share one creation. A client whose creation failed is not kept.
- A client is closed after `IDLE` seconds without use, and when its loop ends: `shutdown_asyncgens`,
  which `asyncio.run` and the bridge call, closes the generator that keeps it.
- A forked child does not run its parent's loop, so it never uses its parent's clients.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from streamrec.storage.backend import Backend
from streamrec.store_kinds import KINDS

IDLE: Final = 5.0
"""Seconds without use after which a client is closed."""

ENVIRONMENT: Final = (
    *(prefix for kind in KINDS for prefix in kind.environment),
    *("HTTP", "NO_PROXY", "SSL_"),
)
"""Prefixes of the environment variables that clients read."""


class _Client:
    def __init__(self, creation: asyncio.Task[Backend], kept: tuple[Any, ...]) -> None:
        self.creation = creation
        self.kept = kept  # objects that the key contains by identity
        self.users = 0
        self.timer: asyncio.TimerHandle | None = None


class _Loop:
    def __init__(self) -> None:
        self.clients: dict[Hashable, _Client] = {}
        self.closing: set[_Client] = set()
        self.keeper: AsyncGenerator[None] | None = None

    def release(self, key: Hashable, client: _Client) -> None:
        client.users -= 1
        if not client.users and self.clients.get(key) is client:
            client.timer = asyncio.get_running_loop().call_later(
                IDLE, self._close_idle, key, client
            )

    def _close_idle(self, key: Hashable, client: _Client) -> None:
        if not client.users and self.clients.get(key) is client:
            del self.clients[key]
            self.closing.add(client)
            task = asyncio.get_running_loop().create_task(
                self._close(client), name="streamrec closes a client"
            )
            client.kept = (*client.kept, task)

    async def _close(self, client: _Client) -> None:
        with suppress(Exception):
            await client.creation.result().aclose()
        self.closing.remove(client)

    async def close_at_the_end(self) -> AsyncGenerator[None]:
        """Closes the remaining clients when the loop closes it.

        It closes them again if their closing was cancelled just before.
        """
        try:
            yield
        finally:
            clients = [*self.clients.values(), *self.closing]
            self.clients = {}
            for client in clients:
                if client.timer is not None:
                    client.timer.cancel()
                with suppress(Exception):
                    await (await client.creation).aclose()


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = WeakKeyDictionary()


async def borrow(
    key: Hashable, kept: tuple[Any, ...], make: Callable[[], Coroutine[Any, Any, Backend]]
) -> tuple[Backend, Callable[[], None]]:
    """Returns a client of this loop, and the function that returns it.

    `make` creates the client if there is none for this key. Objects that the key contains by
    identity are `kept` as long as the client.
    """
    running = asyncio.get_running_loop()
    loop = _loops.setdefault(running, _Loop())
    if loop.keeper is None:
        loop.keeper = loop.close_at_the_end()
        await anext(loop.keeper)
    client = loop.clients.get(key)
    if client is None:
        client = loop.clients[key] = _Client(running.create_task(make()), kept)
    if client.timer is not None:
        client.timer.cancel()
        client.timer = None
    client.users += 1
    # Several callers wait for one creation: a cancelled one must not cancel it, and a failed one
    # must not stay for the next caller.
    try:
        backend = await asyncio.shield(client.creation)
    except BaseException:
        client.users -= 1
        creation = client.creation
        if (
            creation.done()
            and (creation.cancelled() or creation.exception())
            and loop.clients.get(key) is client
        ):
            del loop.clients[key]
        raise
    return backend, partial(loop.release, key, client)


def make_key(*parts: Any) -> tuple[Hashable, tuple[Any, ...]]:
    """Returns a key that is equal for clients made from equal parts.

    Returns also the objects that it contains by identity.

    >>> make_key({"a": [1, True]}) == make_key({"a": [1, True]})
    True
    >>> make_key({"a": 1})[0] == make_key({"a": True})[0]
    False
    """
    kept: list[Any] = []
    environment = tuple(
        sorted(item for item in os.environ.items() if item[0].upper().startswith(ENVIRONMENT))
    )
    return (_freeze(parts, kept), environment), tuple(kept)


def _freeze(value: Any, kept: list[Any]) -> Hashable:
    """Returns a hashable form of a value; an object of an unknown type counts by its identity."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return type(value).__name__, value
    if isinstance(value, Mapping):
        return "mapping", frozenset(
            (_freeze(key, kept), _freeze(part, kept)) for key, part in value.items()
        )
    if isinstance(value, list | tuple):
        return "sequence", tuple(_freeze(part, kept) for part in value)
    kept.append(value)
    return "object", id(value)
