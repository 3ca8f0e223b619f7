"""Routes: parses requests to an object store. Pure.

Two ways of speaking are understood: S3 with the bucket in the path (which Google's XML API shares),
and the JSON API of Google Cloud Storage. Everything is read off the request line; headers are not
looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.servers.faults import Kind

Op = Literal["media", "metadata", "list", "bucket", "other"]

_GCS_ROOTS = (
    "storage/v1/b",
    "download/storage/v1/b",
    "upload/storage/v1/b",
    "resumable/upload/storage/v1/b",
)
_S3_SUBRESOURCES = frozenset(
    {"uploads", "uploadId", "acl", "tagging", "attributes", "torrent", "retention"}
)


@dataclass(frozen=True)
class Route:
    """A request, understood.

    Args:
        api: The dialect to answer in.
        op: What is asked: an object's bytes, its metadata, a listing, a bucket, or something that
            the simulated store does not do.
        kind: The kind of request that faults are drawn for.
        bucket: Its name, or "".
        key: The object's key, decoded, or "".
        query: The query's parameters, decoded; the last of a name counts.
    """

    api: Literal["s3", "gcs"]
    op: Op
    kind: Kind
    bucket: str = ""
    key: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What faults and the log call the object: "bucket/key"."""
        return f"{self.bucket}/{self.key}"


def route(method: str, target: str) -> Route:
    """Understands a request line."""
    parts = urlsplit(target if not target.startswith("//") else "/" + target.lstrip("/"))
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    path = parts.path.lstrip("/")
    for root in _GCS_ROOTS:
        if path == root or path.startswith(root + "/"):
            return _gcs(method, path[len(root) + 1 :], query, download=root.startswith("download"))
    return _s3(method, path, query)


def _s3(method: str, path: str, query: Mapping[str, str]) -> Route:
    raw_bucket, _, raw_key = path.partition("/")
    bucket, key = unquote(raw_bucket), unquote(raw_key)
    if method not in ("GET", "HEAD"):
        return Route("s3", "other", "write", bucket, key, query)
    if not key:
        op: Op = (
            "bucket" if method == "HEAD" else "other" if _S3_SUBRESOURCES & query.keys() else "list"
        )
        return Route("s3", op, "list", bucket, "", query)
    if _S3_SUBRESOURCES & query.keys():
        return Route("s3", "other", "list", bucket, key, query)
    if method == "HEAD":
        return Route("s3", "metadata", "stat", bucket, key, query)
    return Route("s3", "media", "read", bucket, key, query)


def _gcs(method: str, path: str, query: Mapping[str, str], *, download: bool) -> Route:
    raw_bucket, _, rest = path.partition("/")
    bucket = unquote(raw_bucket)
    collection, _, raw_key = rest.partition("/")
    if method not in ("GET", "HEAD"):
        return Route(
            "gcs", "other", "write", bucket, unquote(raw_key) or query.get("name", ""), query
        )
    if collection != "o":
        return Route("gcs", "other" if collection else "bucket", "list", bucket, "", query)
    if not raw_key:
        return Route("gcs", "list", "list", bucket, "", query)
    if query.get("alt") == "media" or download:
        return Route("gcs", "media", "read", bucket, unquote(raw_key), query)
    return Route("gcs", "metadata", "stat", bucket, unquote(raw_key), query)
