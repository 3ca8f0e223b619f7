"""What the JSON API of Google Cloud Storage says: names of resources, answers, errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from streamrec.storage.backend import ObjectInfo
from streamrec.storage.backends.http.responses import check_answer
from streamrec.storage.backends.urls import split_object
from streamrec.storage.resilience.faults import Cause, TransientError

__all__ = ["check", "info_in", "read_json", "resource"]


async def check(answer: aiohttp.ClientResponse, path: str, start: int | None = None, end: int | None = None) -> None:
    """Raises what an error stands for, in the store's own words."""
    if answer.status >= 300:
        said = " ".join((await answer.text(errors="replace"))[:1000].split())
        check_answer(answer, path, start, end, said)


async def read_json(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """The answer's JSON object; a TransientError where it is none."""
    body = await answer.read()
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise TransientError(Cause.SERVER, f"no JSON in {body[:100]!r}") from error
    if not isinstance(found, dict) or "error" in found:
        raise TransientError(Cause.SERVER, f"no answer in {body[:100]!r}")
    return found


def info_in(path: str, item: Mapping[str, Any]) -> ObjectInfo:
    """What an object's resource says of it."""
    return ObjectInfo(path, int(item["size"]), str(item["generation"]))


def resource(path: str) -> str:
    """An object's place below the API's root."""
    bucket, key = split_object(path)
    return f"/b/{quote(bucket, safe='')}/o/{quote(key, safe='')}"
