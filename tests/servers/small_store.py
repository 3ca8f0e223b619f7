"""A small store whose answers a test may replace: S3, Google Cloud Storage and a plain web server
over the same objects.

For answers that real servers and the simulated store never give: those of gateways, proxies and
captive portals.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

from streamrec.storage import RetryPolicy
from tests.servers.answering import Answer, Asked, answering
from tests.servers.network.http1 import window

MODIFIED: Final = "Tue, 01 Jul 2025 10:00:00 GMT"
MODIFIED_ISO: Final = "2025-07-01T10:00:00.000Z"
SCHEMES: Final = ("s3", "gs", "http")
LISTING: Final = ("s3", "gs")
"""Those that can be listed."""

IMPATIENT: Final = RetryPolicy(patience=0.5, first_contact=0.3, backoff_base=0.01)

Replace = Callable[[Asked, Answer], Answer]
"""Gets a request and the right answer, and gives the answer that is sent."""


@dataclass
class SmallStore:
    """The objects by name, the requests so far, and what replaces answers."""

    objects: dict[str, bytes] = field(default_factory=dict)
    replace: Replace = lambda asked, answer: answer
    asked: list[Asked] = field(default_factory=list)
    endpoint: str = ""

    def url(self, scheme: str, name: str) -> str:
        return f"{self.endpoint}/web/{name}" if scheme == "http" else f"{scheme}://b/{name}"

    def options(self, scheme: str) -> dict[str, Any]:
        if scheme == "http":
            return {}
        anonymous = {"token": "anon"} if scheme == "gs" else {"key": "k", "secret": "s"}
        return {"endpoint_url": self.endpoint, **anonymous}

    def kind(self, asked: Asked) -> str:
        """What is asked for: "list", "stat", "read", or another method."""
        path = urlsplit(asked.path)
        if path.path.rstrip("/") in ("/b", "/storage/v1/b/b/o"):
            return "list"
        if asked.method == "HEAD" or (asked.method, path.path[:9]) == ("GET", "/storage/"):
            return "stat"
        return "read" if asked.method == "GET" else asked.method

    def respond(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        return self.replace(asked, self._answer(asked))

    def _answer(self, asked: Asked) -> Answer:
        url = urlsplit(asked.path)
        kind, gcs = self.kind(asked), url.path.startswith(("/storage/", "/download/"))
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if kind == "list":
            names = [name for name in sorted(self.objects) if name.startswith(query["prefix"])]
            return self._gcs_listing(names) if gcs else self._s3_listing(names)
        name = unquote(url.path.rpartition("/o/")[2] if gcs else url.path.split("/", 2)[2])
        if asked.method == "PUT":
            self.objects[name] = asked.body
        elif asked.method == "DELETE":
            self.objects.pop(name, None)
            return Answer(204)
        elif name not in self.objects:
            return Answer(404)
        data = self.objects[name]
        headers = {"ETag": etag(data), "Last-Modified": MODIFIED, "Accept-Ranges": "bytes"}
        if gcs:
            if kind == "stat":
                return Answer(200, json.dumps(resource(name, data)).encode())
            headers["X-Goog-Generation"] = generation(data)
        if asked.method == "PUT":
            return Answer(200, b"", headers)
        status, start, stop = window(asked.headers.get("range", ""), len(data))
        if status == 416:
            return Answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return Answer(status, data[start:stop], headers)

    def _s3_listing(self, names: list[str]) -> Answer:
        entries = "".join(
            f"<Contents><Key>{quote(name)}</Key><ETag>{etag(self.objects[name])}</ETag>"
            f"<LastModified>{MODIFIED_ISO}</LastModified>"
            f"<Size>{len(self.objects[name])}</Size></Contents>"
            for name in names
        )
        body = (
            f"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>{entries}"
            "</ListBucketResult>"
        )
        return Answer(200, body.encode(), {"Content-Type": "application/xml"})

    def _gcs_listing(self, names: list[str]) -> Answer:
        items = [resource(name, self.objects[name]) for name in names]
        return Answer(200, json.dumps({"kind": "storage#objects", "items": items}).encode())


def etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def generation(data: bytes) -> str:
    return str(int(hashlib.md5(data).hexdigest()[:12], 16))


def resource(name: str, data: bytes) -> dict[str, str]:
    """What GCS says of an object."""
    return {
        "name": name,
        "size": str(len(data)),
        "generation": generation(data),
        "updated": MODIFIED_ISO,
    }


@contextmanager
def small_store(objects: dict[str, bytes] | None = None) -> Iterator[SmallStore]:
    """A store that runs meanwhile."""
    store = SmallStore(dict(objects or {}))
    with answering(store.respond) as store.endpoint:
        yield store
