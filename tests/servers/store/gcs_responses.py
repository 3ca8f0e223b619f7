"""Answers in the words of Google Cloud Storage's JSON API (v1): JSON bodies and header fields. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from tests.servers.store.listing import Found, Page

__all__ = ["bucket_json", "buckets_json", "error_json", "list_json", "object_json", "start_of"]


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


def object_json(url: str, bucket: str, item: Found, etag: str, generation: int) -> bytes:
    """An object's metadata; `url` is the store's own."""
    return json.dumps(_resource(url, bucket, item, etag, generation)).encode()


def _resource(url: str, bucket: str, item: Found, etag: str, generation: int) -> dict[str, Any]:
    path = f"storage/v1/b/{quote(bucket, safe='')}/o/{quote(item.key, safe='')}"
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{item.key}/{generation}",
        "name": item.key,
        "bucket": bucket,
        "size": str(item.size),
        "etag": etag.strip('"'),
        "generation": str(generation),
        "metageneration": "1",
        "contentType": "application/octet-stream",
        "storageClass": "STANDARD",
        "timeCreated": _time(item.written),
        "updated": _time(item.written),
        "selfLink": f"{url}/{path}",
        "mediaLink": f"{url}/download/{path}?alt=media&generation={generation}",
    }


def start_of(query: Mapping[str, str]) -> str:
    """The name after which a listing begins.

    Raises:
        ValueError: The page token is none of ours.
    """
    return base64.urlsafe_b64decode(query.get("pageToken", "").encode()).decode()


def list_json(url: str, bucket: str, page: Page, etags: Mapping[str, str], generations: Mapping[str, int]) -> bytes:
    """A page of Objects: list; `etags` and `generations` map keys to versions."""
    answer: dict[str, Any] = {"kind": "storage#objects"}
    if page.found:
        answer["items"] = [_resource(url, bucket, item, etags[item.key], generations[item.key]) for item in page.found]
    if page.prefixes:
        answer["prefixes"] = list(page.prefixes)
    if page.token:
        answer["nextPageToken"] = base64.urlsafe_b64encode(page.token.encode()).decode()
    return json.dumps(answer).encode()


def bucket_json(name: str) -> bytes:
    """A bucket's metadata."""
    return json.dumps(_bucket(name)).encode()


def buckets_json(names: list[str]) -> bytes:
    """All buckets."""
    return json.dumps({"kind": "storage#buckets", "items": [_bucket(name) for name in names]}).encode()


def _bucket(name: str) -> dict[str, str]:
    return {
        "kind": "storage#bucket",
        "id": name,
        "name": name,
        "location": "US",
        "locationType": "multi-region",
        "storageClass": "STANDARD",
        "timeCreated": _time(0),
        "updated": _time(0),
        "metageneration": "1",
    }


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
