"""The requests that read: shards as streams, and records by number."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import streamrec
from examples.service.encoding import bodies, media_type
from examples.service.failures import RequestError
from examples.service.streaming import StreamedBody

__all__ = ["names", "records", "shards"]

BLOCK_BYTES: Final = 256 << 10
"""What is framed at a time: a stream holds about twice as much."""

MAX_RECORDS: Final = 10_000
FETCHED: Final = 64
"""Records of one request that are fetched at the same time."""


async def names(request: Request) -> Response:
    """Returns the names of all shards."""
    service = request.app.state.service
    found = await service.matching(service.settings.shard("*.tfrecord"))
    return JSONResponse([url.removeprefix(f"{service.settings.url}/") for url in found])


async def shards(request: Request) -> Response:
    """Returns the records of a shard, of a byte range of it, or of all shards that a pattern
    matches.
    """
    service = request.app.state.service
    url = service.settings.shard(request.path_params["name"])
    start, end = (byte(request, name) for name in ("start", "end"))
    if end is not None and end < (start or 0):
        raise RequestError(f"end={end} is before start={start or 0}")
    urls = [url]
    if "*" in url:
        if start is not None or end is not None:
            raise RequestError("start and end are bytes of one shard: write its name without *")
        urls = await service.matching(url)
        if not urls:
            raise streamrec.NotFoundError("no shard has such a name", url)
    blocks = blocks_of(service, urls, start, end)
    media = media_type(request.headers.get("accept", ""))
    return StreamedBody(bodies(blocks, media, service.turns), media, service.metrics)


async def blocks_of(
    service: Any, urls: Sequence[str], start: int | None, end: int | None
) -> AsyncGenerator[streamrec.Frames]:
    """Reads the records of shards, one shard after the other, without fetching ahead.

    Raises:
        StreamrecError: A shard is missing or damaged, or the store fails.
        RequestError: The shard is shorter than `start`.
    """
    options = {"block_bytes": BLOCK_BYTES, "buffer_bytes": 0, **service.settings.storage}
    for url in urls:
        async with AsyncExitStack() as opened:
            async with service.turns:
                opening = streamrec.open_shard(url, start=start, end=end, **options)
            shard = await opened.enter_async_context(opening)
            if start and shard.info.size is not None and start > shard.info.size:
                raise RequestError(f"start={start}: the shard has {shard.info.size} bytes", 416)
            async for frames in shard.frames():
                yield frames


async def records(request: Request) -> Response:
    """Returns records by number: `17`, `17,3` in this order, or `100:200`."""
    service = request.app.state.service
    source = await service.records()
    numbers = numbers_in(request.path_params["numbers"], len(source))
    media = media_type(request.headers.get("accept", ""))
    return StreamedBody(
        bodies(fetched(service, source, numbers), media, service.turns), media, service.metrics
    )


async def fetched(
    service: Any, source: streamrec.RecordSource, numbers: Sequence[int]
) -> AsyncGenerator[streamrec.Frames]:
    """Reads the records with these numbers, some at a time."""
    for first in range(0, len(numbers), FETCHED):
        async with service.turns:
            fetching = source.get(list(numbers[first : first + FETCHED]))
        yield await fetching


def numbers_in(text: str, count: int) -> Sequence[int]:
    """Returns the record numbers of a request; there are `count` records.

    Raises:
        RequestError: The numbers are invalid (400), too many (413), or out of range (416).
    """
    found: Sequence[int]
    if span := re.fullmatch(r"(\d{1,15}):(\d{1,15})", text):
        found = range(int(span[1]), int(span[2]))
    elif re.fullmatch(r"\d{1,15}(,\d{1,15})*", text):
        found = [int(number) for number in text.split(",")]
    else:
        raise RequestError(f"{text!r:.60} names no records: write 17, or 17,3, or 100:200")
    if not found:
        raise RequestError(f"{text} holds no record")
    if len(found) > MAX_RECORDS:
        raise RequestError(
            f"{len(found)} records are more than the {MAX_RECORDS} of one request", 413
        )
    if max(found) >= count:
        raise RequestError(f"there is no record {max(found)}: there are {count}, from 0 on", 416)
    return found


def byte(request: Request, name: str) -> int | None:
    """Returns a parameter that is a byte offset, or None without the parameter.

    Raises:
        RequestError: The parameter is not a whole number.
    """
    text = request.query_params.get(name)
    if text is not None and not re.fullmatch(r"\d{1,18}", text):
        raise RequestError(f"{name}={text!r:.40} is not a byte offset")
    return None if text is None else int(text)
