"""A server that answers as the Hugging Face Hub does, as far as reading a data set needs it, from files in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["REPOSITORY", "Hub", "hub"]

REPOSITORY = "me/data"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
API, FILES = f"/api/datasets/{REPOSITORY}", f"/datasets/{REPOSITORY}/resolve/"


class Hub(ThreadingHTTPServer):
    """The server.

    Attributes:
        files: What the repository holds, by their paths in it.
    """

    daemon_threads = True
    files: Mapping[str, bytes]

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.server_port}"

    def entry(self, path: str) -> dict[str, Any] | None:
        """What the API says of a file or directory; None where there is none."""
        if path in self.files:
            return {"type": "file", "path": path, "size": len(self.files[path]), "oid": f"{hash(path):x}"}
        below = any(name.startswith(f"{path}/") for name in self.files)
        return {"type": "directory", "path": path, "oid": "0"} if below else None

    def below(self, path: str, recursive: bool) -> list[dict[str, Any]]:
        """All that lies in a directory."""
        prefix, found = f"{path}/".lstrip("/"), dict[str, None]()
        for name in sorted(self.files):
            parts = name.removeprefix(prefix).split("/")
            if name.startswith(prefix):
                depths = range(1, len(parts) + 1) if recursive else (1,)
                found |= dict.fromkeys(prefix + "/".join(parts[:depth]) for depth in depths)
        return [entry for entry in map(self.entry, found) if entry is not None]


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """What is known of the repository, what lies in a directory, or a file's bytes."""
        place = urlsplit(self.path)
        path, tree = unquote(place.path), f"{API}/tree/"
        if path.startswith(tree):
            _, _, directory = path.removeprefix(tree).partition("/")
            found = self.server.below(directory, parse_qs(place.query)["recursive"] in (["true"], ["True"]))
            self._answer(200 if found else 404, json.dumps(found).encode())
        elif path in (API, f"{API}/revision/main"):
            said = {"id": REPOSITORY, "sha": COMMIT, "private": False, "tags": [], "downloads": 0, "likes": 0}
            self._answer(200, json.dumps(said).encode())
        elif path.startswith(FILES):
            _, _, name = path.removeprefix(FILES).partition("/")
            self._give(self.server.files.get(name))
        else:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        """What is known of single paths."""
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        kind = self.headers["Content-Type"]
        paths = json.loads(body)["paths"] if kind == "application/json" else parse_qs(body)["paths"]
        found = [entry for entry in map(self.server.entry, paths) if entry is not None]
        self._answer(200, json.dumps(found).encode())

    def _give(self, data: bytes | None) -> None:
        if data is None:
            self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return
        wanted = self.headers["Range"]
        if wanted is None:
            self._answer(200, data, {"X-Repo-Commit": COMMIT})
            return
        first, last = (int(number or len(data) - 1) for number in wanted.removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        told = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
        self._answer(206 if part else 416, part, {"Content-Range": told, "X-Repo-Commit": COMMIT})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def hub(files: Mapping[str, bytes]) -> Iterator[Hub]:
    """A running one."""
    with Hub(("127.0.0.1", 0), Handler) as server:
        server.files = files
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
