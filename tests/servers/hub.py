"""A server with the few answers of the Hugging Face Hub that its filesystem asks for when a data
set is listed and read: repository, tree, paths and content. It holds one data set.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from tests.servers.answering import Answer, Asked, answering
from tests.servers.network.http1 import window

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(NamedTuple):
    """A hub that runs: its URL, and the requests so far."""

    endpoint: str
    asked: list[Asked]


@contextmanager
def small_hub(repository: str, files: Mapping[str, bytes]) -> Iterator[Hub]:
    """A hub with one data set, whose files are given by their paths."""
    asked: list[Asked] = []
    api = f"/api/datasets/{repository}"

    def respond(request: Asked) -> Answer:
        asked.append(request)
        path = unquote(urlsplit(request.path).path)
        if path in (api, f"{api}/revision/main"):
            return as_json({"id": repository, "sha": COMMIT, "private": False, "tags": []})
        if path.startswith(f"{api}/tree/main"):
            below = path.removeprefix(f"{api}/tree/main").strip("/")
            recursive = "recursive=true" in request.path.lower()
            return as_json(entries(files, below, recursive=recursive))
        if path == f"{api}/paths-info/main":
            wanted = parse_qs(request.body.decode()).get("paths", [])
            return as_json([entry(name, files[name]) for name in wanted if name in files])
        content = f"/datasets/{repository}/resolve/main/"
        name = path.removeprefix(content)
        if path.startswith(content) and name in files:
            return part_of(files[name], request.headers.get("range"))
        return Answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    with answering(respond) as endpoint:
        yield Hub(endpoint, asked)


def as_json(value: Any) -> Answer:
    return Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def entry(name: str, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    return {"type": "file", "path": name, "size": len(content), "oid": digest}


def entries(files: Mapping[str, bytes], below: str, *, recursive: bool) -> list[dict[str, Any]]:
    """The files below a directory, and the directories."""
    found: dict[str, dict[str, Any]] = {}
    prefix = f"{below}/" if below else ""
    for name, content in files.items():
        inner = name.removeprefix(prefix)
        if not name.startswith(prefix):
            continue
        for level, _ in enumerate(inner.split("/")[:-1], 1):
            directory = prefix + "/".join(inner.split("/")[:level])
            found.setdefault(directory, {"type": "directory", "path": directory, "oid": COMMIT})
        found[name] = entry(name, content)
    return [
        each for path, each in found.items() if recursive or "/" not in path.removeprefix(prefix)
    ]


def part_of(content: bytes, wanted: str | None) -> Answer:
    """The content, or the range of it that a header names."""
    status, first, end = window(wanted or "", len(content))
    headers = {"ETag": f'"{hashlib.sha1(content, usedforsecurity=False).hexdigest()}"'}
    if status == 206:
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
    return Answer(status, content[first:end], headers)
