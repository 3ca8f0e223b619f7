"""Answers in the words of Google Cloud Storage's JSON API (v1): JSON with what clients read.
Pure.
"""

import json
from collections.abc import Mapping
from typing import Any

from tests.servers.store.listing import Found, Page


def error_json(status: int, message: str) -> bytes:
    """The body of an error."""
    reason = {
        401: "authError",
        403: "forbidden",
        404: "notFound",
        412: "conditionNotMet",
        416: "requestedRangeNotSatisfiable",
        429: "rateLimitExceeded",
        503: "backendError",
    }
    detail = {"message": message, "domain": "global", "reason": reason.get(status, "invalid")}
    return json.dumps({"error": {"code": status, "message": message, "errors": [detail]}}).encode()


def object_json(bucket: str, item: Found, etag: str, generation: int) -> bytes:
    """An object's metadata."""
    return json.dumps(_resource(bucket, item, etag, generation)).encode()


def _resource(bucket: str, item: Found, etag: str, generation: int) -> dict[str, Any]:
    return {
        "kind": "storage#object",
        "name": item.key,
        "bucket": bucket,
        "size": str(item.size),
        "etag": etag.strip('"'),
        "generation": str(generation),
        "metageneration": "1",
        "timeCreated": item.time,
        "updated": item.time,
    }


def list_json(
    bucket: str, page: Page, etags: Mapping[str, str], generations: Mapping[str, int]
) -> bytes:
    """A page of Objects: list; `etags` and `generations` map keys to versions."""
    answer: dict[str, Any] = {"kind": "storage#objects"}
    if page.found:
        answer["items"] = [
            _resource(bucket, item, etags[item.key], generations[item.key]) for item in page.found
        ]
    if page.prefixes:
        answer["prefixes"] = list(page.prefixes)
    if page.token:
        answer["nextPageToken"] = page.token
    return json.dumps(answer).encode()


def bucket_json(name: str) -> bytes:
    """A bucket's metadata."""
    return json.dumps(
        {"kind": "storage#bucket", "id": name, "name": name, "location": "US"}
    ).encode()
