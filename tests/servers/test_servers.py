"""The servers of the tests: each fault as a client meets it and the log tells it."""

import contextlib
import http.client
import json
import multiprocessing
import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.client import IncompleteRead
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.servers.faults import NO_FAULTS
from tests.servers.objectstore import ObjectStore
from tests.servers.real import _running
from tests.servers.requestlog import Entry

KEY = "/bucket/dir/key"
MEDIA = "/download/storage/v1/b/bucket/o/dir%2Fkey?alt=media"
RANGE = {"Range": "bytes=100000-199999"}


class Answer(NamedTuple):
    """A response; `body` has the bytes before an error, too."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    error: Exception | None


def ask(
    url: str,
    target: str,
    headers: dict[str, str] | None = None,
    method: str = "GET",
    seconds: float = 30,
) -> Answer:
    """Sends one request on one connection, and reads to the end or the break: no retry, no
    redirect.
    """
    with contextlib.closing(
        http.client.HTTPConnection(urlsplit(url).netloc, timeout=seconds)
    ) as connection:
        connection.request(method, target, headers=headers or {})
        response = connection.getresponse()
        body = b""
        missing = response.length or 0
        error = None
        try:
            while data := response.read1(1 << 16):  # read() would lose the bytes before an error
                body += data
            if len(body) < missing:  # read1 is silent about it
                error = IncompleteRead(body, missing - len(body))
        except (OSError, http.client.HTTPException) as caught:
            error = caught
        return Answer(response.status, response.headers, body, error)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every server that a test starts has ended with all of its threads when the test has."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def content() -> bytes:
    """The bytes of bucket/dir/key: enough for several segments of TCP."""
    return random.Random(1).randbytes(300_000)


@pytest.fixture
def store(tmp_path: Path, content: bytes) -> Iterator[ObjectStore]:
    """A store with one bucket, without faults."""
    (tmp_path / "bucket" / "dir").mkdir(parents=True)
    (tmp_path / "bucket" / "dir" / "key").write_bytes(content)
    with ObjectStore(tmp_path) as store:
        yield store


def last_entry(store: ObjectStore) -> Entry:
    """The entry of the request that has just ended."""
    assert store.wait_idle()
    return store.log[-1]


CONTENT_RANGE = "bytes 100000-199999/300000"


@pytest.mark.parametrize(
    ("fault", "at", "headers", "told", "first", "end", "error"),
    [
        ("reset", 0.0, {}, None, 0, 0, ConnectionResetError),
        ("reset", 0.999999, {}, None, 0, 299_999, ConnectionResetError),
        ("reset", 0.5, RANGE, CONTENT_RANGE, 100_000, 150_000, ConnectionResetError),
        ("cut", 0.5, {}, None, 0, 150_000, IncompleteRead),
        ("stall", 0.5, {}, None, 0, 150_000, TimeoutError),
        ("truncate", 0.5, RANGE, CONTENT_RANGE, 100_000, 150_000, None),
        ("wrong_content_range", 0.5, RANGE, "bytes 150000-199999/300000", 150_000, 200_000, None),
        ("ignore_range", 0.5, RANGE, None, 0, 300_000, None),
    ],
)
def test_a_fault_and_an_honest_answer(
    store: ObjectStore,
    content: bytes,
    fault: str,
    at: float,
    headers: dict[str, str],
    told: str | None,
    first: int,
    end: int,
    error: type[Exception] | None,
) -> None:
    """All that precedes the place of the fault is delivered; the next answer is as it should be."""
    store.faults = replace(NO_FAULTS, script=(fault,), at=at)
    answer, entry = (
        ask(store.url, KEY, headers, seconds=0.5 if fault == "stall" else 30),
        last_entry(store),
    )
    assert (answer.body, answer.headers["Content-Range"]) == (content[first:end], told)
    assert isinstance(answer.error, error) if error else answer.error is None
    assert (entry.fault, entry.sent) == (fault, end - first)
    honest = ask(store.url, KEY, headers)
    assert (honest.body, honest.error) == (content[100_000:200_000] if headers else content, None)
    assert last_entry(store).fault == ""


def test_a_body_without_a_range_has_none_to_get_wrong(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, wrong_content_range=0.5, ignore_range=0.5)
    assert (ask(store.url, KEY).body, last_entry(store).fault) == (content, "")


def test_one_byte_is_flipped(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, corrupt=1.0)
    answer = ask(store.url, KEY, RANGE)
    wanted = content[100_000:200_000]
    assert [a ^ b for a, b in zip(answer.body, wanted, strict=True) if a != b] == [0xFF]


def test_a_changed_object_is_another_version(store: ObjectStore, content: bytes) -> None:
    etag = ask(store.url, KEY, method="HEAD").headers["ETag"]
    generation = json.loads(ask(store.url, "/storage/v1/b/bucket/o/dir%2Fkey").body)["generation"]
    store.faults = replace(NO_FAULTS, script=("change",))
    assert ask(store.url, KEY, {**RANGE, "If-Match": etag}).status == 412
    assert last_entry(store).fault == "change"
    assert ask(store.url, KEY, {"If-Match": etag}).status == 412  # and so it stays
    assert ask(store.url, f"{MEDIA}&generation={generation}").status == 404
    new = ask(store.url, KEY)
    assert new.headers["ETag"] != etag
    assert len(new.body) == len(content)
    assert {a ^ b for a, b in zip(new.body, content, strict=True)} == {1}
    assert ask(store.url, KEY, {"If-Match": new.headers["ETag"]}).body == new.body
    assert new.headers["ETag"].encode() in ask(store.url, "/bucket?list-type=2").body.replace(
        b"&quot;", b'"'
    )


def test_the_same_seed_gives_the_same_faults_again(store: ObjectStore) -> None:
    wet = replace(NO_FAULTS, seed=5, reset=0.3, cut=0.2, unavailable=0.2, corrupt=0.1)
    runs = []
    for faults in (wet, wet, replace(wet, seed=6)):
        store.faults = faults
        store.clear()
        bodies = [ask(store.url, KEY, RANGE).body for _ in range(30)]
        assert store.wait_idle()
        runs.append((bodies, [(entry.ordinal, entry.fault, entry.sent) for entry in store.log]))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert {fault for _, fault, _ in runs[0][1]} == {"", "reset", "cut", "unavailable", "corrupt"}


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork")
def test_a_server_ends_though_a_forked_process_holds_its_input() -> None:
    """As the worker processes of a DataLoader do: the pipe to the watchdog does not end when this
    process closes it.
    """
    context = multiprocessing.get_context("fork")
    released = context.Event()
    holder = context.Process(target=released.wait)
    with _running(
        [sys.executable, "-c", "import signal; signal.pause()"], lambda: None, ""
    ) as server:
        assert server.directory.exists()
        holder.start()
    try:
        assert holder.is_alive()
        assert not server.directory.exists()
    finally:
        released.set()
        holder.join()
