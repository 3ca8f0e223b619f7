"""A server that answers as the Hugging Face Hub does, as far as reading a data set needs it, from
files in memory.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.servers.answering import Answer, Asked, answering

REPOSITORY = "me/data"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
API, FILES = f"/api/datasets/{REPOSITORY}", f"/datasets/{REPOSITORY}/resolve/"


class Hub:
    """The server.

    Attributes:
        files: What the repository holds, by their paths in it.
        endpoint: Its URL.
    """

    endpoint: str

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files

    def entry(self, path: str) -> dict[str, Any] | None:
        """The API's entry for a file or directory, or None."""
        if path in self.files:
            return {
                "type": "file",
                "path": path,
                "size": len(self.files[path]),
                "oid": f"{hash(path):x}",
            }
        below = any(name.startswith(f"{path}/") for name in self.files)
        return {"type": "directory", "path": path, "oid": "0"} if below else None

    def below(self, path: str, recursive: bool) -> list[dict[str, Any]]:
        """All entries of a directory."""
        prefix, found = f"{path}/".lstrip("/"), dict[str, None]()
        for name in sorted(self.files):
            parts = name.removeprefix(prefix).split("/")
            if name.startswith(prefix):
                depths = range(1, len(parts) + 1) if recursive else (1,)
                found |= dict.fromkeys(prefix + "/".join(parts[:depth]) for depth in depths)
        return [entry for entry in map(self.entry, found) if entry is not None]

    def __call__(self, asked: Asked) -> Answer:
        """The repository's metadata, a directory's entries, or a file's bytes."""
        place = urlsplit(asked.path)
        path, tree = unquote(place.path), f"{API}/tree/"
        if asked.method == "POST":
            return self._paths(asked)
        if path.startswith(tree):
            _, _, directory = path.removeprefix(tree).partition("/")
            found = self.below(
                directory, parse_qs(place.query)["recursive"] in (["true"], ["True"])
            )
            return Answer(200 if found else 404, json.dumps(found).encode())
        if path in (API, f"{API}/revision/main"):
            said = {
                "id": REPOSITORY,
                "sha": COMMIT,
                "private": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
            }
            return Answer(200, json.dumps(said).encode())
        if not path.startswith(FILES):
            return Answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        data = self.files.get(path.removeprefix(FILES).partition("/")[2])
        return (
            Answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            if data is None
            else given(data, asked)
        )

    def _paths(self, asked: Asked) -> Answer:
        """What is known of single paths."""
        body, kind = asked.body.decode(), asked.headers["content-type"]
        paths = json.loads(body)["paths"] if kind == "application/json" else parse_qs(body)["paths"]
        found = [entry for entry in map(self.entry, paths) if entry is not None]
        return Answer(200, json.dumps(found).encode())


def given(data: bytes, asked: Asked) -> Answer:
    """A file's bytes, or the range of them that is asked for."""
    wanted = asked.headers.get("range")
    if wanted is None:
        return Answer(200, data, {"X-Repo-Commit": COMMIT})
    first, last = (
        int(number or len(data) - 1) for number in wanted.removeprefix("bytes=").split("-")
    )
    part = data[first : last + 1]
    told = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
    return Answer(206 if part else 416, part, {"Content-Range": told, "X-Repo-Commit": COMMIT})


@contextmanager
def hub(files: Mapping[str, bytes]) -> Iterator[Hub]:
    """A running one."""
    hub = Hub(files)
    with answering(hub) as hub.endpoint:
        yield hub
