"""Figures for Prometheus, health, and the delay of the event loop."""

from __future__ import annotations

import asyncio
from time import process_time
from typing import Any, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from streamrec.prometheus import StatisticsCollector
from streamrec.storage import Statistics, collecting

__all__ = ["Counting", "Metrics", "healthz", "readyz", "scrape", "watch_loop"]

PERIOD: Final = 0.005
"""Seconds from one look at the event loop to the next."""

BOUNDS: Final = (
    0.0005,
    0.001,
    0.002,
    0.003,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.025,
    0.05,
    0.1,
    0.25,
    1.0,
)


class Metrics:
    """The counters of the service; streamrec itself counts the requests to stores.

    Attributes:
        statistics: The statistics of all requests to the stores.
        loop_delay: The delay with which the event loop runs what is due, in seconds.
        loop_round: Processor time of one round of the event loop, in seconds: the delay if nothing
            else ran on the machine.
        open_streams: Bodies that are being sent.
        streams: Bodies that have ended, by result: "complete", "left" (by the client), "failed".
        uploaded: Records that were uploaded.
    """

    def __init__(self) -> None:
        self.statistics = Statistics()
        self.registry = CollectorRegistry()
        self.registry.register(StatisticsCollector(self.statistics.snapshot))
        self.loop_delay = Histogram(
            "service_event_loop_delay_seconds",
            "How late the event loop is.",
            registry=self.registry,
            buckets=BOUNDS,
        )
        self.loop_round = Histogram(
            "service_event_loop_round_seconds",
            "Processor time of a round.",
            registry=self.registry,
            buckets=BOUNDS,
        )
        self.open_streams = Gauge(
            "service_open_streams", "Bodies that are being sent.", registry=self.registry
        )
        self.streams = Counter(
            "service_streams", "Bodies that are over.", ["end"], registry=self.registry
        )
        self.uploaded = Counter(
            "service_uploaded_records", "Records taken in.", registry=self.registry
        )
        for end in ("complete", "left", "failed"):
            self.streams.labels(end)


class Counting:
    """Middleware that counts the store requests of each HTTP request."""

    def __init__(self, app: ASGIApp, statistics: Statistics) -> None:
        self._app = app
        self._statistics = statistics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application."""
        with collecting(self._statistics):
            await self._app(scope, receive, send)


async def watch_loop(metrics: Metrics) -> None:
    """Measures how late the event loop wakes a sleeping task, and how long a round takes, until it
    is cancelled.
    """
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + PERIOD
        await asyncio.sleep(PERIOD)
        metrics.loop_delay.observe(max(0.0, loop.time() - due))
        began = process_time()
        await asyncio.sleep(0)
        metrics.loop_round.observe(process_time() - began)


async def scrape(request: Request) -> Response:
    """Returns all figures in Prometheus's format."""
    return Response(
        generate_latest(request.app.state.service.metrics.registry), media_type=CONTENT_TYPE_LATEST
    )


async def healthz(request: Request) -> Response:
    """Answers if the process is alive and its event loop runs."""
    return JSONResponse({"status": "alive"})


async def readyz(request: Request) -> Response:
    """Answers 200 if the store answers, otherwise 503 with the reason."""
    service: Any = request.app.state.service
    await service.matching(service.settings.shard("*.tfrecord"))
    return JSONResponse({"status": "ready"})
