r"""A simulated object store: a directory served as S3 and as Google Cloud Storage, with faults on
demand.

    root/bucket/dir/key   is   s3://bucket/dir/key   and   gs://bucket/dir/key

It answers GET, HEAD and listings over real HTTP/1.1, as fast as `sendfile` or as slow as you say,
and with faults drawn from a seed. Requests may be signed or not; nothing is checked. Nothing can be
written over HTTP: write files into the directory (for uploads put `tests.storage.faultproxy` in
front of a real server).

An object's version follows from its file (size and time of the last write) and from how often the
fault `change` has replaced it. A replaced object has the file's length and other bytes: each is
XORed with a mask that depends on the count. So a reader that mixes two versions returns bytes that
no version holds.

As a program it prints its URL and serves until it is interrupted:

    python -m tests.servers.objectstore --root DIR --port 0 --faults '{"rate": 60e6}'
"""

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.network import wire
from tests.servers.network.fault_server import Exchange, FaultServer, error_body
from tests.servers.network.http1 import Fields, window
from tests.servers.program import run
from tests.servers.store import gcs_responses, s3_responses
from tests.servers.store.listing import Found, locate, objects, page

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

    def __init__(
        self, root: str | os.PathLike[str], faults: Faults = NO_FAULTS, port: int = 0
    ) -> None:
        if not os.path.isdir(root):
            raise NotADirectoryError(
                f"{os.fspath(root)}: no directory to serve; make it, with a directory a bucket"
            )
        super().__init__(_Files(Path(root)).respond, faults, port)

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
    return {
        "endpoint_url": endpoint,
        **({"anon": True} if scheme == "s3" else {"token": "anon", "project": "p"}),
    }


@contextmanager
def serve_objects(
    root: Path, objects: Mapping[str, bytes], faults: Faults = NO_FAULTS
) -> Iterator[ObjectStore]:
    """Writes the objects of a bucket named "bucket", and serves them."""
    (root / "bucket").mkdir()
    for key, data in objects.items():
        (root / "bucket" / key).write_bytes(data)
    with ObjectStore(root, faults) as store:
        yield store


@dataclass(frozen=True)
class OpenedObject:
    """An open object: its file, its name and size, and its version.

    Args:
        etag: The entity tag, with its quotes.
        generation: Google's number of the version.
        mask: What each byte of the file is XORed with.
    """

    file: int
    found: Found
    etag: str
    generation: int
    mask: int

    @property
    def fields(self) -> Fields:
        return s3_responses.object_fields(self.etag, self.generation, self.found.written)


class _Files:
    """Answers requests from the files below a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._changes: Counter[str] = Counter()

    def respond(self, exchange: Exchange) -> bool:
        """Answers one request; whether the connection can carry another."""
        asked = exchange.route
        if asked.op in ("media", "metadata"):
            return self._object(exchange)
        if asked.op in ("bucket", "list"):
            return self._bucket(exchange)
        waits = bool(exchange.field("expect"))  # for leave to send the body: botocore does
        if not waits:
            exchange.client.body()
        refuse(
            exchange,
            501,
            "NotImplemented",
            "The simulated store only reads; write into its directory.",
        )
        return not waits

    def _version(self, name: str, found: Found) -> tuple[str, int, int]:
        """The entity tag, generation and mask of an object in its present state."""
        count = self._changes[name]
        etag = f'"{found.written:x}-{found.size:x}-{count}"'
        return etag, found.written // 1000 + count, 1 + (count - 1) % 255 if count else 0

    def _object(self, exchange: Exchange) -> bool:
        asked = exchange.route
        if exchange.fate.fault == "change":
            self._changes[asked.name] += 1
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
            return answer_object(
                exchange, OpenedObject(file, found, *self._version(asked.name, found))
            )
        finally:
            os.close(file)

    def _missing(self, exchange: Exchange) -> bool:
        bucket = locate(self._root, exchange.route.bucket, "key")
        if bucket is None or not bucket.parent.is_dir():
            return refuse(exchange, 404, "NoSuchBucket", "The specified bucket does not exist.")
        return refuse(exchange, 404, "NoSuchKey", "The specified key does not exist.")

    def _bucket(self, exchange: Exchange) -> bool:
        asked = exchange.route
        probe = locate(self._root, asked.bucket, "key")
        if probe is None or not probe.parent.is_dir():
            return self._missing(exchange)
        kind = "application/json" if asked.api == "gcs" else "application/xml"
        if asked.op == "bucket":
            exchange.whole(
                200, gcs_responses.bucket_json(asked.bucket) if asked.api == "gcs" else b"", kind
            )
            return True
        try:
            body = self._listed(exchange, probe.parent)
        except ValueError:
            return refuse(
                exchange,
                400,
                "InvalidArgument",
                "The continuation token or the limit is not valid.",
            )
        exchange.whole(200, body, kind)
        return True

    def _listed(self, exchange: Exchange, bucket: Path) -> bytes:
        asked, query = exchange.route, exchange.route.query
        prefix, is_json = query.get("prefix", ""), asked.api == "gcs"
        limit = max(1, min(1000, int(query.get("maxResults" if is_json else "max-keys") or 1000)))
        token = query.get("pageToken" if is_json else "continuation-token", "")
        part = page(objects(bucket, prefix), prefix, query.get("delimiter", ""), token, limit)
        versions = {
            item.key: self._version(f"{asked.bucket}/{item.key}", item) for item in part.found
        }
        etags = {key: etag for key, (etag, _, _) in versions.items()}
        if not is_json:
            return s3_responses.list_xml(asked.bucket, query, part, limit, etags)
        generations = {key: generation for key, (_, generation, _) in versions.items()}
        return gcs_responses.list_json(asked.bucket, part, etags, generations)


def refuse(exchange: Exchange, status: int, code: str, message: str, fields: Fields = ()) -> bool:
    body, content_type = error_body(exchange.route, status, code, message)
    exchange.whole(status, body, content_type, fields)
    return True


def answer_object(exchange: Exchange, opened: OpenedObject) -> bool:
    refused = _precondition(exchange, opened)
    if refused:
        return refuse(exchange, *refused)
    asked = exchange.route
    if asked.op == "media" and exchange.client.command == "GET":
        return _media(exchange, opened)
    if asked.api == "gcs" and asked.op == "metadata":
        body = gcs_responses.object_json(asked.bucket, opened.found, opened.etag, opened.generation)
        exchange.whole(200, body, "application/json")
        return True
    length = (("Content-Length", str(opened.found.size)),)
    exchange.head(200, length + opened.fields, opened.found.size, more=False)
    return True


def _precondition(exchange: Exchange, opened: OpenedObject) -> tuple[int, str, str] | None:
    """Status, code and message of the refusal if another version is requested; None if not."""
    tags = exchange.field("if-match")
    if tags and tags != "*" and opened.etag not in [tag.strip() for tag in tags.split(",")]:
        return (
            412,
            "PreconditionFailed",
            "At least one of the preconditions you specified did not hold.",
        )
    query = exchange.route.query
    wanted = query.get("ifGenerationMatch") or exchange.field("x-goog-if-generation-match")
    if wanted and wanted != str(opened.generation):
        return 412, "PreconditionFailed", "The generation is not the one that was asked for."
    if query.get("generation") and query["generation"] != str(opened.generation):
        return 404, "NoSuchVersion", "There is no such generation of the object."
    return None


@dataclass(frozen=True)
class Shape:
    """A body as it is sent.

    Args:
        fault: The fault that was done; "" where the one that was drawn has no meaning for this
            body.
        start: The first byte of the object that is sent.
        stop: One past the last.
        promised: Content-Length of the head.
        flipped: A byte that is sent wrong, or None.
    """

    fault: str
    start: int
    stop: int
    promised: int
    flipped: int | None = None


def shape(fault: str, at: float, start: int, stop: int, *, partial: bool) -> Shape:
    """The bytes from `start` to `stop` after `fault` at the share `at` of them; `partial` says
    whether it is a 206.
    """
    length = stop - start
    place = start + int(at * length)
    match fault:
        case "reset" | "cut" | "stall" if length:
            return Shape(fault, start, place, length)
        case "truncate" if length:
            return Shape(fault, start, place, place - start)
        case "corrupt" if length:
            return Shape(fault, start, stop, length, flipped=place)
        case "wrong_content_range" if partial and length > 1:
            first = start + 1 + int(at * (length - 1))
            return Shape(fault, first, stop, stop - first)
        case "ignore_range":
            return Shape(fault, start, stop, length)
    return Shape("", start, stop, length)


def _media(exchange: Exchange, opened: OpenedObject) -> bool:
    """Answers with bytes of the object, in the shape that the request's fate gives them."""
    fate, size = exchange.fate, opened.found.size
    status, start, stop = window(exchange.field("range"), size)
    if status == 416:
        where = (("Content-Range", f"bytes */{size}"),)
        return refuse(
            exchange, 416, "InvalidRange", "The requested range is not satisfiable.", where
        )
    if fate.fault == "ignore_range" and status == 206:
        status, body = 200, shape(fate.fault, fate.at, 0, size, partial=False)
    else:
        fault = "" if fate.fault == "ignore_range" else fate.fault
        body = shape(fault, fate.at, start, stop, partial=status == 206)
    exchange.note(start=body.start)
    if body.fault:
        exchange.note(fault=body.fault)
    fields: Fields = (("Content-Length", str(body.promised)),)
    if status == 206:
        fields += (("Content-Range", f"bytes {body.start}-{stop - 1}/{size}"),)
    exchange.head(status, fields + opened.fields, body.promised, more=body.stop > body.start)
    _send(exchange, opened, body)
    return _finish(exchange, body.fault)


def _send(exchange: Exchange, opened: OpenedObject, body: Shape) -> None:
    pieces = [(body.start, body.stop, 0)]
    if body.flipped is not None:
        pieces = [(body.start, body.flipped, 0), (body.flipped, body.flipped + 1, 0xFF)]
        pieces += [(body.flipped + 1, body.stop, 0)]
    sent = sum(
        wire.send(exchange.client.connection, opened.file, start, stop, mask ^ opened.mask)
        for start, stop, mask in pieces
    )
    exchange.note(sent=sent)


def _finish(exchange: Exchange, fault: str) -> bool:
    """Ends the answer as its fault says; whether the connection can carry another."""
    if fault == "reset":
        wire.reset(exchange.client.connection)
    elif fault == "stall":
        exchange.log.stalled(exchange.number)
        wire.stall(exchange.client.connection)
    return fault not in ("reset", "cut", "stall")


if __name__ == "__main__":
    run(
        "python -m tests.servers.objectstore",
        {"--root": "the directory whose directories are the buckets"},
        lambda options, faults, port: ObjectStore(options["root"], faults, port),
    )
