"""Clients that are shared: one for each event loop and set of options, made once.

To make a client of S3 costs 50 to 85 ms of the processor, so a service that opens a shard for each request must not
make one each time.

Rules:
- A client belongs to its event loop and to its options: protocol, storage options, retry policy, filesystem, and the
  environment that clients look at. Different credentials never share one.
- It is made once, however many ask at the same time. One that cannot be made is not kept.
- A client is closed when it was not used for `IDLE` seconds, and when its loop ends: `shutdown_asyncgens`, which
  `asyncio.run` and the bridge call, closes the generator that keeps it.
- A forked child has no loop of its parent's, so it never sees a client of it.
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

__all__ = ["IDLE", "borrow", "key_of"]

IDLE: Final = 5.0
"""Seconds after which a client that is not used is closed."""

ENVIRONMENT: Final = (
    "AWS_",
    "BOTO",
    "AZURE_",
    "GOOGLE_",
    "GCE_",
    "CLOUDSDK_",
    "STORAGE_EMULATOR_HOST",
    "HTTP",
    "NO_PROXY",
    "SSL_",
)
"""What the names of environment variables begin with that clients look at."""


class _Client:
    """One client, and how many use it."""

    def __init__(self, making: asyncio.Task[Backend], kept: tuple[Any, ...]) -> None:
        self.making = making
        self.kept = kept  # objects of which the key has the identity
        self.users = 0
        self.timer: asyncio.TimerHandle | None = None


class _Loop:
    """The clients of one event loop."""

    def __init__(self) -> None:
        self.clients: dict[Hashable, _Client] = {}
        self.keeper: AsyncGenerator[None] | None = None

    async def keep(self) -> None:
        """Has the loop close what is left when it ends."""
        if self.keeper is None:
            self.keeper = self._until_the_end()
            await anext(self.keeper)

    def release(self, key: Hashable, client: _Client) -> None:
        """Ends one use; a client that is not used is closed after a while."""
        client.users -= 1
        if not client.users and self.clients.get(key) is client:
            client.timer = asyncio.get_running_loop().call_later(IDLE, self._close_idle, key, client)

    def _close_idle(self, key: Hashable, client: _Client) -> None:
        if not client.users and self.clients.get(key) is client:
            del self.clients[key]
            closing = client.making.result().aclose()
            task = asyncio.get_running_loop().create_task(closing, name="streamrec closes a client")
            client.kept = (*client.kept, task)

    async def _until_the_end(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            clients, self.clients = list(self.clients.values()), {}
            for client in clients:
                if client.timer is not None:
                    client.timer.cancel()
                with suppress(Exception):
                    await (await client.making).aclose()


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = WeakKeyDictionary()


async def borrow(
    key: Hashable, kept: tuple[Any, ...], make: Callable[[], Coroutine[Any, Any, Backend]]
) -> tuple[Backend, Callable[[], None]]:
    """A client of this loop, and what ends its use.

    Args:
        key: What it is made from; see `key_of`.
        kept: Objects of which the key has the identity: they live as long as the client.
        make: Makes it, where there is none.
    """
    running = asyncio.get_running_loop()
    loop = _loops.setdefault(running, _Loop())
    await loop.keep()
    client = loop.clients.get(key)
    if client is None:
        client = loop.clients[key] = _Client(running.create_task(make()), kept)
    if client.timer is not None:
        client.timer.cancel()
        client.timer = None
    client.users += 1
    try:
        backend = await asyncio.shield(client.making)
    except BaseException:
        client.users -= 1
        if client.making.done() and loop.clients.get(key) is client and _has_failed(client.making):
            del loop.clients[key]
        raise
    return backend, partial(loop.release, key, client)


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


def key_of(*parts: Any) -> tuple[Hashable, tuple[Any, ...]]:
    """A key that is equal where what clients are made from is, and the objects of which it has the identity.

    >>> key_of({"a": [1, True]}) == key_of({"a": [1, True]}), key_of({"a": 1})[0] == key_of({"a": True})[0]
    (True, False)
    """
    kept: list[Any] = []
    environment = tuple(sorted(item for item in os.environ.items() if item[0].upper().startswith(ENVIRONMENT)))
    return (_form(parts, kept), environment), tuple(kept)


def _form(value: Any, kept: list[Any]) -> Hashable:
    """A value as something that can be compared and hashed; of an unknown kind by its identity."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return type(value).__name__, value
    if isinstance(value, Mapping):
        return "mapping", frozenset((_form(key, kept), _form(part, kept)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return "sequence", tuple(_form(part, kept) for part in value)
    kept.append(value)
    return "object", id(value)
