r"""A simulated object store: a directory served as S3 and as Google Cloud Storage, with faults on demand.

    root/bucket/dir/key   is   s3://bucket/dir/key   and   gs://bucket/dir/key

It answers GET, HEAD and listings over real HTTP/1.1, as fast as `sendfile` or as slow as you say, and with
faults drawn from a seed. Requests may be signed or not; nothing is checked. Nothing can be written over
HTTP: write files into the directory (for uploads put `tests.storage.faultproxy` in front of a real server).

>>> import pathlib, tempfile, urllib.request
>>> from tests.servers.faults import Faults
>>> directory = tempfile.TemporaryDirectory()
>>> bucket = pathlib.Path(directory.name, "bucket")
>>> bucket.mkdir()
>>> _ = bucket.joinpath("key").write_bytes(b"0123456789")
>>> with ObjectStore(directory.name) as store:
...     ask = urllib.request.Request(f"{store.url}/bucket/key", headers={"Range": "bytes=2-4"})
...     urllib.request.urlopen(ask).read()
...     store.faults = Faults(first_byte=0, jitter=0, corrupt=1.0, at=0.0)
...     urllib.request.urlopen(ask).read()
...     idle = store.wait_idle()
...     [(entry.status, entry.sent, entry.fault) for entry in store.log]
b'234'
b'\xcd34'
[(206, 3, ''), (206, 3, 'corrupt')]
>>> directory.cleanup()

As a program it prints its URL and serves until it is interrupted:

    python -m tests.servers.objectstore --root DIR --port 0 --faults '{"rate": 60e6}'
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.network import wire
from tests.servers.network.fault_server import Exchange, FaultServer, discard_body, error_body
from tests.servers.network.http1 import Fields, field, window
from tests.servers.network.shapes import Shape, shape
from tests.servers.program import run
from tests.servers.store import gcs_responses, s3_responses
from tests.servers.store.listing import Found, buckets, locate, objects, page
from tests.servers.store.versions import Version, Versions

__all__ = ["ObjectStore", "anonymous_options", "serve_objects"]

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


class ObjectStore(FaultServer):
    """Serves the buckets below `root` on 127.0.0.1, in threads of this process, until it is closed.

    Args:
        root: A directory whose directories are the buckets.
        faults: In force at the start; none by default.
        port: 0 lets the system choose.

    Raises:
        NotADirectoryError: `root` is none.
    """

    def __init__(self, root: str | os.PathLike[str], faults: Faults = NO_FAULTS, port: int = 0) -> None:
        if not os.path.isdir(root):
            raise NotADirectoryError(f"{os.fspath(root)}: no directory to serve; make it, with a directory a bucket")
        super().__init__(_Files(Path(root)).respond, faults, port, "objectstore")

    def options(self, scheme: str = "s3") -> dict[str, Any]:
        """Storage options for its URLs of a scheme: "s3", "gs" or "http"."""
        return anonymous_options(scheme, self.url)

    def url_of(self, scheme: str, path: str) -> str:
        """The URL of bucket/key."""
        return f"{self.url}/{path}" if scheme == "http" else f"{scheme}://{path}"


def anonymous_options(scheme: str, endpoint: str) -> dict[str, Any]:
    """Storage options for a store, or a proxy before it, that checks no credentials."""
    if scheme == "http":
        return {}
    return {"endpoint_url": endpoint, **({"anon": True} if scheme == "s3" else {"token": "anon", "project": "p"})}


@contextmanager
def serve_objects(root: Path, objects: Mapping[str, bytes], faults: Faults = NO_FAULTS) -> Iterator[ObjectStore]:
    """Writes the objects of a bucket named "bucket", and serves them."""
    (root / "bucket").mkdir()
    for key, data in objects.items():
        (root / "bucket" / key).write_bytes(data)
    with ObjectStore(root, faults) as store:
        yield store


@dataclass(frozen=True)
class _Opened:
    """An open object: its file, name, size and version."""

    file: int
    found: Found
    version: Version


class _Files:
    """Answers requests from the files below a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._versions = Versions()

    def respond(self, exchange: Exchange) -> bool:
        """Answers one request; whether the connection can carry another."""
        asked = exchange.route
        if asked.op in ("media", "metadata"):
            return self._object(exchange)
        if asked.op == "buckets":
            return self._buckets(exchange)
        if asked.op in ("bucket", "list"):
            return self._bucket(exchange)
        waits = bool(field(exchange.request.fields, "expect"))  # for leave to send the body: botocore does
        if not waits:
            discard_body(exchange)
        _refuse(exchange, 501, "NotImplemented", "The simulated store only reads; write into its directory.")
        return not waits

    def _object(self, exchange: Exchange) -> bool:
        asked = exchange.route
        if exchange.fate.fault == "change":
            self._versions.change(asked.name)
            exchange.note(fault="change")
        path = locate(self._root, asked.bucket, asked.key)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path else None
        except OSError as exc:
            if exc.errno not in _MISSING:
                raise
            file = None
        if file is None:
            return self._missing(exchange)
        try:
            state = os.fstat(file)
            if not stat.S_ISREG(state.st_mode):
                return self._missing(exchange)
            found = Found(asked.key, state.st_size, state.st_mtime_ns)
            version = self._versions.of(asked.name, found.size, found.written)
            return self._opened(exchange, _Opened(file, found, version))
        finally:
            os.close(file)

    def _missing(self, exchange: Exchange) -> bool:
        bucket = locate(self._root, exchange.route.bucket, "key")
        if bucket is None or not bucket.parent.is_dir():
            return _refuse(exchange, 404, "NoSuchBucket", "The specified bucket does not exist.")
        return _refuse(exchange, 404, "NoSuchKey", "The specified key does not exist.")

    def _opened(self, exchange: Exchange, opened: _Opened) -> bool:
        refused = _precondition(exchange, opened.version)
        if refused:
            return _refuse(exchange, *refused)
        if exchange.route.op == "media" and exchange.request.method == "GET":
            return _media(exchange, opened)
        if exchange.route.api == "gcs" and exchange.route.op == "metadata":
            host = field(exchange.request.fields, "host")
            version, bucket = opened.version, exchange.route.bucket
            body = gcs_responses.object_json(f"http://{host}", bucket, opened.found, version.etag, version.generation)
            exchange.whole(200, body, "application/json")
            return True
        length = (("Content-Length", str(opened.found.size)),)
        exchange.head(200, length + _object_fields(opened), opened.found.size, more=False)
        return True

    def _buckets(self, exchange: Exchange) -> bool:
        names = buckets(self._root)
        if exchange.route.api == "gcs":
            exchange.whole(200, gcs_responses.buckets_json(names), "application/json")
        else:
            exchange.whole(200, s3_responses.buckets_xml(names), "application/xml")
        return True

    def _bucket(self, exchange: Exchange) -> bool:
        asked = exchange.route
        probe = locate(self._root, asked.bucket, "key")
        if probe is None or not probe.parent.is_dir():
            return _refuse(exchange, 404, "NoSuchBucket", "The specified bucket does not exist.")
        if asked.op == "bucket":
            is_json = asked.api == "gcs"
            body = gcs_responses.bucket_json(asked.bucket) if is_json else b""
            exchange.whole(200, body, "application/json" if is_json else "application/xml")
            return True
        try:
            body = self._listed(exchange, probe.parent)
        except ValueError:
            return _refuse(exchange, 400, "InvalidArgument", "The continuation token or the limit is not valid.")
        exchange.whole(200, body, "application/json" if asked.api == "gcs" else "application/xml")
        return True

    def _listed(self, exchange: Exchange, bucket: Path) -> bytes:
        asked, query = exchange.route, exchange.route.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        is_json = asked.api == "gcs"
        limit = max(1, min(1000, int(query.get("maxResults" if is_json else "max-keys") or 1000)))
        after = gcs_responses.start_of(query) if is_json else s3_responses.start_of(query)
        first, behind = query.get("startOffset", ""), query.get("endOffset", "")
        items = [item for item in objects(bucket, prefix) if item.key >= first and (not behind or item.key < behind)]
        part = page(items, prefix, delimiter, after, limit)
        of = {item.key: self._versions.of(f"{asked.bucket}/{item.key}", item.size, item.written) for item in part.found}
        etags = {key: version.etag for key, version in of.items()}
        if not is_json:
            return s3_responses.list_xml(asked.bucket, query, part, limit, etags)
        generations = {key: version.generation for key, version in of.items()}
        host = field(exchange.request.fields, "host")
        return gcs_responses.list_json(f"http://{host}", asked.bucket, part, etags, generations)


def _refuse(exchange: Exchange, status: int, code: str, message: str, fields: Fields = ()) -> bool:
    body, content_type = error_body(exchange.route, status, code, message)
    exchange.whole(status, body, content_type, fields)
    return True


def _precondition(exchange: Exchange, version: Version) -> tuple[int, str, str] | None:
    """Status, code and message of the refusal if another version is requested; None if not."""
    tags = field(exchange.request.fields, "if-match")
    if tags and tags != "*" and version.etag not in [tag.strip() for tag in tags.split(",")]:
        return 412, "PreconditionFailed", "At least one of the preconditions you specified did not hold."
    query = exchange.route.query
    wanted = query.get("ifGenerationMatch") or field(exchange.request.fields, "x-goog-if-generation-match")
    if wanted and wanted != str(version.generation):
        return 412, "PreconditionFailed", "The generation is not the one that was asked for."
    if query.get("generation") and query["generation"] != str(version.generation):
        return 404, "NoSuchVersion", "There is no such generation of the object."
    return None


def _object_fields(opened: _Opened) -> Fields:
    version = opened.version
    return s3_responses.object_fields(version.etag, version.generation, opened.found.written)


def _media(exchange: Exchange, opened: _Opened) -> bool:
    """Answers with bytes of the object, in the shape that the request's fate gives them."""
    fate, size = exchange.fate, opened.found.size
    wanted = field(exchange.request.fields, "range")
    status, start, stop = window(wanted, size)
    fault = "" if fate.fault == "ignore_range" and status == 200 else fate.fault
    if fault == "ignore_range":
        status, start, stop = 200, 0, size
    if status == 416:
        where = (("Content-Range", f"bytes */{size}"),)
        return _refuse(exchange, 416, "InvalidRange", "The requested range is not satisfiable.", where)
    body = shape(fault, fate.at, stop - start, partial=status == 206)
    exchange.note(start=start + body.skipped)
    if body.fault:
        exchange.note(fault=body.fault)
    fields: Fields = (("Content-Length", str(body.promised)),)
    if status == 206:
        fields += (("Content-Range", f"bytes {start + body.skipped}-{stop - 1}/{size}"),)
    exchange.head(status, fields + _object_fields(opened), body.promised, more=body.bytes_sent > 0)
    _send(exchange, opened, body, start)
    return _finish(exchange, body)


def _send(exchange: Exchange, opened: _Opened, body: Shape, start: int) -> None:
    sent = 0
    for piece in body.pieces:
        mask = piece.mask ^ opened.version.mask
        first, last = start + piece.start, start + piece.stop
        if mask:
            sent += wire.send_masked(exchange.sock, opened.file, first, last, mask)
        else:
            sent += wire.send_file(exchange.sock, opened.file, first, last)
    exchange.note(sent=sent)


def _finish(exchange: Exchange, body: Shape) -> bool:
    """Ends the answer as its shape says; whether the connection can carry another."""
    if body.ending == "reset":
        wire.reset(exchange.sock)
    elif body.ending == "stall":
        exchange.log.stalled(exchange.number)
        wire.stall(exchange.sock)
    return body.ending == "whole"


if __name__ == "__main__":
    run(
        "python -m tests.servers.objectstore",
        {"--root": "the directory whose directories are the buckets"},
        lambda options, faults, port: ObjectStore(options["root"], faults, port),
    )
