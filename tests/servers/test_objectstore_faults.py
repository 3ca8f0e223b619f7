"""Each fault, as a client meets it, and as the log tells it."""

from __future__ import annotations

import json
import socket
from collections import Counter
from dataclasses import replace
from http.client import IncompleteRead
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import draws
from tests.servers.faults import FAULTS_OF, NO_FAULTS
from tests.servers.objectstore import ObjectStore
from tests.servers.plainclient import ask
from tests.servers.requestlog import Entry, repeated_bytes

KEY = "/bucket/dir/key"
MEDIA = "/download/storage/v1/b/bucket/o/dir%2Fkey?alt=media"
RANGE = {"Range": "bytes=100000-199999"}


def last(store: ObjectStore) -> Entry:
    """The entry of the request that has just ended."""
    assert store.wait_idle()
    return store.log[-1]


@pytest.mark.parametrize("headers", [{}, RANGE])
@pytest.mark.parametrize("at", [0.0, 0.5, 0.999999])
def test_reset(store: ObjectStore, content: bytes, headers: dict[str, str], at: float) -> None:
    store.faults = replace(NO_FAULTS, reset=1.0, at=at)
    answer, entry = ask(store.url, KEY, headers), last(store)
    whole = content[100_000:200_000] if headers else content
    assert isinstance(answer.error, ConnectionResetError)
    assert answer.body == whole[: int(at * len(whole))]  # all that precedes the place is delivered
    assert int(answer.headers["Content-Length"]) == len(whole)
    assert (entry.fault, entry.sent, entry.promised) == ("reset", len(answer.body), len(whole))


def test_cut(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, cut=1.0, at=0.5)
    answer = ask(store.url, KEY)
    assert isinstance(answer.error, IncompleteRead)
    assert answer.body == content[:150_000]
    assert last(store).fault == "cut"


def test_stall(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, stall=1.0, at=0.5)
    with socket.create_connection((urlsplit(store.url).hostname or "", urlsplit(store.url).port or 0)) as sock:
        sock.sendall(f"GET {KEY} HTTP/1.1\r\n\r\n".encode())
        got = b""
        while not got.endswith(content[149_000:150_000]):
            got += sock.recv(1 << 16)
        assert store.wait_idle()  # a stalled answer is idle
        assert (store.log[-1].fault, store.log[-1].sent, store.log[-1].done) == ("stall", 150_000, False)
        assert store.counters.in_flight == 1
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)


def test_a_stalled_answer_ends_with_its_client(store: ObjectStore) -> None:
    store.faults = replace(NO_FAULTS, script=("stall",))
    assert isinstance(ask(store.url, KEY, seconds=0.2).error, TimeoutError)
    assert ask(store.url, KEY).error is None


def test_truncate(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, truncate=1.0, at=0.5)
    answer = ask(store.url, KEY, RANGE)
    assert (answer.status, answer.body, answer.error) == (206, content[100_000:150_000], None)
    assert answer.headers["Content-Range"] == "bytes 100000-199999/300000"


def test_wrong_content_range(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, wrong_content_range=1.0, at=0.5)
    answer = ask(store.url, KEY, RANGE)
    assert answer.headers["Content-Range"] == "bytes 150000-199999/300000"
    assert (answer.status, answer.body, answer.error) == (206, content[150_000:200_000], None)
    assert (last(store).start, last(store).fault) == (150_000, "wrong_content_range")
    assert (ask(store.url, KEY).body, last(store).fault) == (content, "")  # nothing to get wrong


def test_ignore_range(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, ignore_range=1.0)
    answer = ask(store.url, KEY, RANGE)
    assert (answer.status, answer.body, answer.headers["Content-Range"]) == (200, content, None)
    assert last(store).fault == "ignore_range"
    assert (ask(store.url, KEY).body, last(store).fault) == (content, "")


def test_corrupt(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, corrupt=1.0)
    answer = ask(store.url, KEY, RANGE)
    wanted = content[100_000:200_000]
    assert [a ^ b for a, b in zip(answer.body, wanted, strict=True) if a != b] == [0xFF]


def test_change(store: ObjectStore, content: bytes) -> None:
    etag = ask(store.url, KEY, method="HEAD").headers["ETag"]
    generation = json.loads(ask(store.url, "/storage/v1/b/bucket/o/dir%2Fkey").body)["generation"]
    store.faults = replace(NO_FAULTS, script=("change",))
    assert ask(store.url, KEY, {**RANGE, "If-Match": etag}).status == 412
    assert last(store).fault == "change"
    assert ask(store.url, KEY, {"If-Match": etag}).status == 412  # and so it stays
    assert ask(store.url, f"{MEDIA}&generation={generation}").status == 404
    new = ask(store.url, KEY)
    assert new.headers["ETag"] != etag
    assert len(new.body) == len(content)
    assert {a ^ b for a, b in zip(new.body, content, strict=True)} == {1}
    assert ask(store.url, KEY, {"If-Match": new.headers["ETag"]}).body == new.body
    assert new.headers["ETag"].encode() in ask(store.url, "/bucket?list-type=2").body.replace(b"&quot;", b'"')


@pytest.mark.parametrize("target", [KEY, MEDIA, "/bucket?list-type=2", "/storage/v1/b/bucket/o"])
def test_unavailable(store: ObjectStore, target: str) -> None:
    store.faults = replace(NO_FAULTS, unavailable=1.0)
    plain = ask(store.url, target)
    assert (plain.status, plain.headers["Retry-After"]) == (503, None)
    assert b"SlowDown" in plain.body or json.loads(plain.body)["error"]["code"] == 503
    store.faults = replace(NO_FAULTS, unavailable=1.0, retry_after=7)
    assert ask(store.url, target).headers["Retry-After"] == "7"
    assert ask(store.url, target, method="HEAD").body == b""
    assert store.wait_idle()
    assert store.counters.by_fault == {"unavailable": 3}


def test_bodies_that_crawl(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, rate=60e6, crawl=0.5, crawl_rate=9e6)
    for _ in range(20):
        assert ask(store.url, KEY).body == content
    assert store.wait_idle()
    assert {entry.rate for entry in store.log} == {60_000_000, 9_000_000}


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


def test_switching_holds_from_the_next_request_on(store: ObjectStore, content: bytes) -> None:
    for name in ("reset", "", "unavailable", ""):
        store.faults = replace(NO_FAULTS, script=(name,))
        answer = ask(store.url, KEY)
        assert (last(store).fault, answer.body == content) == (name, name == "")


def test_a_reader_that_resumes_repeats_nothing(store: ObjectStore, content: bytes) -> None:
    store.faults = replace(NO_FAULTS, seed=1, reset=0.5, cut=0.1, unavailable=0.2)
    got = b""
    while len(got) < len(content):
        answer = ask(store.url, KEY, {"Range": f"bytes={len(got)}-"})
        got += answer.body if answer.status == 206 else b""
    assert got == content
    assert store.wait_idle()
    assert repeated_bytes(store.log) == {}
    assert Counter(entry.status for entry in store.log)[206] > 1
    ask(store.url, KEY, {"Range": "bytes=0-9"})
    store.faults = NO_FAULTS
    ask(store.url, KEY, {"Range": "bytes=0-9"})
    assert store.wait_idle()
    assert repeated_bytes(store.log)["bucket/dir/key"] >= 10


@draws(60)
@given(
    fault=st.sampled_from(["", *FAULTS_OF["read"]]),
    at=st.floats(0, 1, exclude_max=True),
    size=st.integers(0, 3),
    span=st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, 3))),
)
def test_tiny_bodies(
    tmp_path_factory: pytest.TempPathFactory, fault: str, at: float, size: int, span: tuple[int, int] | None
) -> None:
    root: Path = tmp_path_factory.mktemp("root")
    (root / "b").mkdir()
    (root / "b" / "k").write_bytes(bytes(range(size)))
    with ObjectStore(root, replace(NO_FAULTS, script=(fault,), at=at)) as store:
        headers = {} if span is None else {"Range": f"bytes={span[0]}-{span[1]}"}
        answer = ask(store.url, "/b/k", headers, seconds=0.05 if fault == "stall" else 30)
        honest = ask(store.url, "/b/k", headers)
        assert store.wait_idle()
        first = store.log[0]
    if first.fault == "":
        assert (answer.status, answer.body, answer.error) == (honest.status, honest.body, None)
    else:
        assert first.fault == fault
        assert (answer.status, answer.body, answer.error is None) != (honest.status, honest.body, True) or (
            fault == "change"
        )
