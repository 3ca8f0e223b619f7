"""The application: its settings, its routes, and the objects that live as long as it does."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

import streamrec
from examples.service import events, metrics, reading, uploads
from examples.service.encoding import Turns
from examples.service.failures import HANDLERS, RequestError
from streamrec.storage import Storages

__all__ = ["Service", "Settings", "create"]

NAME = re.compile(r"(?:[\w*-][\w.*-]*/)*[\w*-][\w.*-]*\.tfrecord", re.ASCII)


@dataclass(frozen=True)
class Settings:
    """The settings of the service.

    Args:
        url: The directory of the shards.
        storage_options: As for fsspec.
        patience: Seconds for which a request is retried while the store fails.
    """

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    patience: float = 5.0

    @classmethod
    def of_environment(cls) -> Settings:
        """Reads STREAMREC_SERVICE_URL, STREAMREC_SERVICE_OPTIONS (JSON) and
        STREAMREC_SERVICE_PATIENCE.
        """
        given = {
            name: os.environ.get(f"STREAMREC_SERVICE_{name}") for name in ("OPTIONS", "PATIENCE")
        }
        url = os.environ["STREAMREC_SERVICE_URL"].rstrip("/")
        return cls(
            url, json.loads(given["OPTIONS"] or "{}"), float(given["PATIENCE"] or cls.patience)
        )

    @property
    def index(self) -> str:
        """The URL of the index of all shards."""
        return f"{self.url}/records.index"

    @property
    def storage(self) -> dict[str, Any]:
        """The store options of every call of streamrec: with equal options, all calls share one
        client.
        """
        return {
            "storage_options": self.storage_options,
            "retry": streamrec.RetryPolicy(patience=self.patience),
        }

    def shard(self, name: str) -> str:
        """Returns the URL of a shard, or the pattern of several.

        Raises:
            RequestError: The name is not that of a shard.
        """
        if not NAME.fullmatch(name):
            raise RequestError(
                f"{name!r} is not a shard's name: letters, digits, . _ - and /, and .tfrecord at "
                "its end"
            )
        return f"{self.url}/{name}"


class Service:
    """The state that all requests share.

    Args:
        settings: The settings of the service.

    Attributes:
        events: Appends events, while the application runs.
        turns: Assigns turns on the event loop.
        metrics: The counters.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.events: events.EventLog
        self.turns = Turns()
        self.metrics = metrics.Metrics()
        self._source: streamrec.RecordSource | None = None
        self._opening = asyncio.Lock()

    async def records(self) -> streamrec.RecordSource:
        """Returns the indexed records; the first request that needs the index opens it."""
        async with self._opening:
            if self._source is None:
                self._source = await streamrec.RecordSource.open(
                    self.settings.index, **self.settings.storage
                )
            return self._source

    async def matching(self, pattern: str) -> list[str]:
        """Returns the URLs of the shards that a pattern matches, sorted."""
        found = streamrec.Dataset.list_files(pattern, shuffle=False, **self.settings.storage)
        async with self.turns:
            names = found.aiterate()
        async with names:
            return [name.decode() async for name in names]

    async def update_index(self) -> streamrec.RecordSource:
        """Indexes new and changed shards; requests in progress keep the index that they have."""
        async with self._opening:
            shards = f"{self.settings.url}/*.tfrecord"
            await streamrec.write_index(
                shards, self.settings.index, update=True, **self.settings.storage
            )
            self._source = None
        return await self.records()


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Measures the event loop while the application runs, and keeps the store's client, which is
    slow to make.
    """
    service = app.state.service
    async with Storages(**service.settings.storage) as storages:
        await storages.at(service.settings.url)
        watching = asyncio.create_task(metrics.watch_loop(service.metrics))
        async with events.EventLog.open(service.settings.url, service.settings.storage) as log:
            service.events = log
            yield
        watching.cancel()


def create(settings: Settings | None = None) -> Starlette:
    """Returns the application; without settings, it takes them from the environment."""
    service = Service(settings or Settings.of_environment())
    routes = [
        Route("/shards", reading.names, methods=["GET"]),
        Route("/shards/{name:path}", reading.shards, methods=["GET"]),
        Route("/shards/{name:path}", uploads.put_shard, methods=["PUT"]),
        Route("/events", events.post_events, methods=["POST"]),
        Route("/records/{numbers}", reading.records, methods=["GET"]),
        Route("/index", uploads.post_index, methods=["POST"]),
        Route("/healthz", metrics.healthz),
        Route("/readyz", metrics.readyz),
        Route("/metrics", metrics.scrape),
    ]
    counting = Middleware(metrics.Counting, statistics=service.metrics.statistics)
    app = Starlette(
        routes=routes, middleware=[counting], exception_handlers=HANDLERS, lifespan=lifespan
    )
    app.state.service = service
    return app
