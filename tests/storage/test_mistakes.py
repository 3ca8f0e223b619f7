"""Typical mistakes with places: what the store answers then, and what the error says to do."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

import streamrec
from streamrec import RetryPolicy
from streamrec.errors import PermissionDeniedError, StorageError
from streamrec.storage import Storages
from tests.servers.real import Store
from tests.storage.contract import QUICK


class Answer(NamedTuple):
    """What a store says to everything."""

    status: int
    body: str
    headers: Mapping[str, str] = {}


class S3Error(ThreadingHTTPServer):
    """A store that answers every request with one error, as S3 words it."""

    answer: Answer
    requests = 0
    clock_off = timedelta(0)

    @property
    def options(self) -> dict[str, Any]:
        """Storage options that lead here."""
        return {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{self.server_port}"}


class Handler(BaseHTTPRequestHandler):
    server: S3Error
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Also what HEAD is answered, less the body."""
        status, body, headers = self.server.answer
        self.server.requests += 1
        data = f"<?xml version='1.0' encoding='UTF-8'?>\n<Error>{body}</Error>".encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/xml", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET  # noqa: N815

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The Date header."""
        return format_datetime(datetime.now(UTC) + self.server.clock_off, usegmt=True)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def s3_error() -> Iterator[S3Error]:
    with S3Error(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


REDIRECT = Answer(
    301,
    "<Code>PermanentRedirect</Code><Message>The bucket you are attempting to access must be addressed using the "
    "specified endpoint.</Message><Endpoint>b.s3-eu-west-1.amazonaws.com</Endpoint><Bucket>b</Bucket>",
    {"x-amz-bucket-region": "eu-west-1"},
)
MALFORMED = Answer(
    400,
    "<Code>AuthorizationHeaderMalformed</Code><Message>The authorization header is malformed; the region 'us-east-1' "
    "is wrong; expecting 'eu-west-1'</Message><Region>eu-west-1</Region>",
)
SKEWED = Answer(
    403,
    "<Code>RequestTimeTooSkewed</Code><Message>The difference between the request time and the current time is too "
    "large.</Message><RequestTime>20261124T090000Z</RequestTime><ServerTime>2026-11-24T09:31:07Z</ServerTime>"
    "<MaxAllowedSkewMilliseconds>900000</MaxAllowedSkewMilliseconds>",
)


@pytest.mark.parametrize("answer", [REDIRECT, MALFORMED], ids=lambda answer: answer.status)
async def test_a_bucket_in_another_region_names_it(s3_error: S3Error, answer: Answer) -> None:
    s3_error.answer = answer
    async with Storages(s3_error.options, retry=QUICK) as storages:
        storage = await storages.at("s3://b/k")
        with pytest.raises(StorageError, match=r"another region, eu-west-1 .*{'region_name': 'eu-west-1'}"):
            await storage.stream("s3://b/k")
        if answer.headers:  # a HEAD has no body
            with pytest.raises(StorageError, match=r"region, eu-west-1 .*{'region_name': 'eu-west-1'}"):
                await storage.stat("s3://b/k")


async def test_a_clock_that_is_off(s3_error: S3Error) -> None:
    s3_error.answer = SKEWED
    async with Storages(s3_error.options, retry=QUICK) as storages:
        with pytest.raises(PermissionDeniedError, match=r"this machine's clock is off.*: set it") as caught:
            await (await storages.at("s3://b/k")).stream("s3://b/k")
    assert "The store's shows 2026-11-24T09:31:07Z" in str(caught.value)
    assert s3_error.requests == 1


@pytest.mark.parametrize("minutes", [-20, 20, 0])
async def test_a_clock_that_is_off_for_a_head(s3_error: S3Error, minutes: int) -> None:
    """Its answer has no body: the store's clock in the head tells."""
    s3_error.answer, s3_error.clock_off = SKEWED, timedelta(minutes=minutes)
    async with Storages(s3_error.options, retry=QUICK) as storages:
        with pytest.raises(PermissionDeniedError) as caught:
            await (await storages.at("s3://b/k")).stat("s3://b/k")
    assert ("this machine's clock is off" in str(caught.value)) == bool(minutes)
    assert s3_error.requests == 1


def url_of(kind: str, tmp_path: Path, s3_store: Store) -> tuple[str, dict[str, Any]]:
    name = f"{uuid4().hex}/shards"
    return {
        "local": (f"{tmp_path}/{name}", {}),
        "file": (f"file://{tmp_path}/{name}", {}),
        "memory": (f"memory://{name}", {}),
        "s3": (f"s3://streamrec/{name}", dict(s3_store.options)),
    }[kind]


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("kind", ["local", "file", "memory", "s3"])
async def test_a_directory_says_which_pattern_to_write(kind: str, slash: str, tmp_path: Path, s3_store: Store) -> None:
    url, options = url_of(kind, tmp_path, s3_store)
    async with streamrec.ShardWriter(f"{url}/x-{{shard}}.tfrecord", storage_options=options) as writer:
        await writer.write(b"a record")
    with pytest.raises(StorageError) as caught:
        [_ async for _ in streamrec.TFRecordDataset(url + slash, storage_options=options)]
    assert f"this is a directory: write {url}/*.tfrecord* for the shards in it" in str(caught.value)
    advised = streamrec.TFRecordDataset(f"{url}/*.tfrecord*", storage_options=options)
    assert [record async for record in advised] == [b"a record"]


async def test_a_marker_of_a_directory_is_no_shard(s3_store: Store) -> None:
    """As S3 consoles make them: an object of no bytes, whose name ends in a slash."""
    url = f"s3://streamrec/{uuid4().hex}/"
    async with (
        Storages(s3_store.options, retry=QUICK) as storages,
        await (await storages.at(url)).upload(url) as upload,
    ):
        await upload.write(b"")
    with pytest.raises(StorageError, match=r"this is a directory: write .*/\*.tfrecord\*"):
        [_ async for _ in streamrec.TFRecordDataset(url, storage_options=s3_store.options)]


async def test_a_bucket_says_which_pattern_to_write(s3_store: Store) -> None:
    with pytest.raises(StorageError, match=r"write s3://streamrec/key, or s3://streamrec/\*.tfrecord\*"):
        [_ async for _ in streamrec.TFRecordDataset("s3://streamrec", storage_options=s3_store.options)]


class Pages(BaseHTTPRequestHandler):
    """A store whose answer to every listing is the second of two pages; the first of them has one object."""

    first: bytes | None = None
    second: bytes
    status = 200
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """One page."""
        gcs = "/storage/v1/" in self.path
        first = (
            b'{"items": [{"name": "d/a", "size": "1", "generation": "1"}], "nextPageToken": "t"}'
            if gcs
            else b"<ListBucketResult><Name>b</Name><IsTruncated>true</IsTruncated><NextContinuationToken>t"
            b"</NextContinuationToken><Contents><Key>d/a</Key><Size>1</Size></Contents></ListBucketResult>"
        )
        first = self.first or first
        further = "Token=" in self.path or "-token=" in self.path
        self.send_response(self.status if further else 200)
        data = (self.second or first) if further else first
        self.send_header("Content-Type", "application/json" if gcs else "application/xml")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *of: Any) -> None:
        """Says nothing."""


@contextmanager
def answering(handler: type[Pages], scheme: str) -> Iterator[dict[str, Any]]:
    """The options for such a store."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        keys = {"token": "anon"} if scheme == "gs" else {"key": "k", "secret": "s"}
        try:
            yield {"endpoint_url": f"http://127.0.0.1:{server.server_port}", **keys}
        finally:
            server.shutdown()


PAGES = {
    "the first one again": (200, b""),
    "not found": (404, b"{}"),
    "a login page": (200, b"<html>sign in</html>"),
    "no object": (200, b"[]"),
    "deep": (200, b"[" * 100_000),
    "no name": (200, b'{"items": [{}]}'),
    "no key": (200, b"<R><Name>b</Name><Contents><Size>1</Size></Contents></R>"),
    "no token": (200, b"<R><Name>b</Name><IsTruncated>true</IsTruncated></R>"),
    "no size": (200, b"<R><Name>b</Name><Contents><Key>d/b</Key><Size>1e3</Size></Contents></R>"),
}


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("page", PAGES)
def test_a_listing_is_whole_or_an_error(scheme: str, page: str) -> None:
    status, second = PAGES[page]
    retry = RetryPolicy(attempts=2, backoff_base=0.01)
    failed = pytest.raises(
        StorageError, match=rf"{scheme}://b/d/: the server (failed|sent something other).*in 2 attempts"
    )
    with answering(type("Handler", (Pages,), {"status": status, "second": second}), scheme) as options, failed:
        streamrec.matching_files(f"{scheme}://b/d/*", storage_options=options, retry=retry)


async def test_a_listing_has_no_keys_outside_its_prefix() -> None:
    keys = ["d/a", "e/a", "d", "/d/b"]
    items = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    answers = {
        "s3": f"<R><Name>b</Name>{items}</R>",
        "gs": json.dumps({"items": [{"name": key, "size": "1", "generation": "1"} for key in keys]}),
    }
    for scheme, answer in answers.items():
        with answering(type("Handler", (Pages,), {"first": answer.encode()}), scheme) as options:
            async with Storages(options) as storages:
                found = [info.path async for info in (await storages.at(f"{scheme}://b/")).list(f"{scheme}://b/d/")]
        assert found == [f"{scheme}://b/d/a"]
