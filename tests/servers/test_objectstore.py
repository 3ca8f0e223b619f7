"""The store without faults, seen by a plain client."""

from __future__ import annotations

import json
import os
import socket
import xml.etree.ElementTree as ET
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import streamrec
from tests.servers.faults import NO_FAULTS
from tests.servers.network import wire
from tests.servers.objectstore import ObjectStore
from tests.servers.plainclient import ask

KEY = "/bucket/dir/key"
MEDIA = "/download/storage/v1/b/bucket/o/dir%2Fkey?alt=media"
NS = "{http://s3.amazonaws.com/doc/2006-03-01/}"


@pytest.mark.parametrize("target", [KEY, MEDIA, "/storage/v1/b/bucket/o/dir%2Fkey?alt=media"])
def test_a_whole_object(store: ObjectStore, content: bytes, target: str) -> None:
    answer = ask(store.url, target)
    assert (answer.status, answer.body, answer.error) == (200, content, None)
    assert answer.headers["Content-Length"] == str(len(content))
    assert answer.headers["Content-Range"] is None


@pytest.mark.parametrize("target", [KEY, MEDIA])
@pytest.mark.parametrize(
    ("asked", "start", "stop"), [("2-5", 2, 6), ("299990-", 299_990, 300_000), ("-7", 299_993, 300_000)]
)
def test_ranges(store: ObjectStore, content: bytes, target: str, asked: str, start: int, stop: int) -> None:
    answer = ask(store.url, target, {"Range": f"bytes={asked}"})
    assert (answer.status, answer.body) == (206, content[start:stop])
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/300000"


def test_a_range_past_the_end(store: ObjectStore) -> None:
    answer = ask(store.url, KEY, {"Range": "bytes=300000-"})
    assert (answer.status, answer.headers["Content-Range"]) == (416, "bytes */300000")
    assert b"<Code>InvalidRange</Code>" in answer.body


def test_an_empty_object(store: ObjectStore) -> None:
    assert ask(store.url, "/bucket/empty").body == b""
    assert ask(store.url, "/bucket/empty", {"Range": "bytes=0-"}).status == 416


def test_head_tells_what_get_would(store: ObjectStore) -> None:
    head, get = ask(store.url, KEY, method="HEAD"), ask(store.url, KEY)
    assert (head.status, head.body) == (200, b"")
    assert dict(head.headers) == dict(get.headers)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/bucket/nothing", "NoSuchKey"),
        ("/bucket/dir", "NoSuchKey"),
        ("/bucket/dir/key/below", "NoSuchKey"),
        ("/bucket/" + "x" * 300, "NoSuchKey"),
        ("/bucket/%2E%2E/bucket/dir/key", "NoSuchKey"),
        ("/bucket/dir//key", "NoSuchKey"),
        ("/nothing/key", "NoSuchBucket"),
        ("/nothing?list-type=2", "NoSuchBucket"),
        ("/../key", "NoSuchBucket"),
    ],
)
def test_what_is_missing(store: ObjectStore, target: str, code: str) -> None:
    answer = ask(store.url, target)
    assert answer.status == 404
    assert ET.fromstring(answer.body).findtext("Code") == code


def test_versions_pin(store: ObjectStore, root: Path, content: bytes) -> None:
    etag = ask(store.url, KEY, method="HEAD").headers["ETag"]
    generation = json.loads(ask(store.url, "/storage/v1/b/bucket/o/dir%2Fkey").body)["generation"]
    assert ask(store.url, KEY, {"If-Match": f'"other", {etag}'}).body == content
    assert ask(store.url, KEY, {"If-Match": "*"}).body == content
    assert ask(store.url, f"{MEDIA}&generation={generation}").body == content
    assert ask(store.url, f"{MEDIA}&ifGenerationMatch={generation}").body == content
    (root / "bucket" / "dir" / "key").write_bytes(content + b"!")
    assert ask(store.url, KEY, {"If-Match": etag}).status == 412
    assert ask(store.url, f"{MEDIA}&generation={generation}").status == 404
    assert ask(store.url, f"{MEDIA}&ifGenerationMatch={generation}").status == 412
    assert ask(store.url, KEY, {"Authorization": "AWS4-HMAC-SHA256 anything"}).body == content + b"!"


def _s3_keys(store: ObjectStore, query: str) -> tuple[list[str], list[str], int]:
    found, prefixes, pages, token = [], [], 0, ""
    while True:
        answer = ask(store.url, f"/bucket?list-type=2&{query}{token}")
        tree = ET.fromstring(answer.body)
        found += [item.findtext(f"{NS}Key") or "" for item in tree.findall(f"{NS}Contents")]
        prefixes += [item.findtext(f"{NS}Prefix") or "" for item in tree.findall(f"{NS}CommonPrefixes")]
        pages += 1
        if tree.findtext(f"{NS}IsTruncated") == "false":
            return found, prefixes, pages
        token = f"&continuation-token={tree.findtext(f'{NS}NextContinuationToken')}"


def test_s3_lists_in_pages(store: ObjectStore, root: Path) -> None:
    names = [f"dir/{n:03}" for n in range(25)]
    for name in names:
        (root / "bucket" / name).write_bytes(b"x")
    (root / "bucket" / "a b&c").write_bytes(b"")
    assert _s3_keys(store, "max-keys=10&prefix=dir/0") == (names, [], 3)
    assert _s3_keys(store, "delimiter=/&max-keys=2") == (["a b&c", "empty"], ["dir/"], 2)
    assert _s3_keys(store, "start-after=dir/023") == (["dir/024", "dir/key", "empty"], [], 1)
    assert _s3_keys(store, "encoding-type=url&prefix=a") == (["a%20b%26c"], [], 1)
    assert _s3_keys(store, "prefix=nothing/") == ([], [], 1)


def test_gcs_lists_in_pages(store: ObjectStore, root: Path) -> None:
    for n in range(5):
        (root / "bucket" / "dir" / str(n)).write_bytes(b"xy")
    list_url = "/storage/v1/b/bucket/o?maxResults=4&prefix=dir/"
    first = json.loads(ask(store.url, list_url).body)
    rest = json.loads(ask(store.url, f"{list_url}&pageToken={first['nextPageToken']}").body)
    items = first["items"] + rest["items"]
    assert [item["name"] for item in items] == [*(f"dir/{n}" for n in range(5)), "dir/key"]
    assert [item["size"] for item in items] == [*["2"] * 5, "300000"]
    assert "nextPageToken" not in rest
    assert json.loads(ask(store.url, "/storage/v1/b/bucket/o?delimiter=/").body)["prefixes"] == ["dir/"]


def test_a_token_that_is_none(store: ObjectStore) -> None:
    assert ask(store.url, "/bucket?list-type=2&continuation-token=x").status == 400
    assert ask(store.url, "/storage/v1/b/bucket/o?maxResults=many").status == 400


def test_buckets(store: ObjectStore) -> None:
    assert b"<Name>bucket</Name>" in ask(store.url, "/").body
    assert json.loads(ask(store.url, "/storage/v1/b?project=p").body)["items"][0]["name"] == "bucket"
    assert json.loads(ask(store.url, "/storage/v1/b/bucket").body)["name"] == "bucket"
    assert ask(store.url, "/bucket", method="HEAD").status == 200


def test_writing_is_refused_and_the_connection_lives_on(store: ObjectStore, content: bytes) -> None:
    connection = HTTPConnection(urlsplit(store.url).netloc)
    connection.request("PUT", KEY, b"new")
    refused = connection.getresponse()
    assert (refused.status, b"NotImplemented" in refused.read()) == (501, True)
    connection.request("GET", KEY)
    assert connection.getresponse().read() == content
    connection.close()
    assert store.wait_idle()
    assert [(entry.kind, entry.received, entry.connection) for entry in store.log] == [
        ("write", 3, 0),
        ("read", 0, 0),
    ]


async def test_a_client_that_waits_for_leave_to_write_is_refused_at_once(store: ObjectStore) -> None:
    options = {"endpoint_url": store.url, "key": "any", "secret": "any"}
    with pytest.raises(streamrec.StorageError, match="only reads"):
        async with streamrec.ShardWriter("s3://bucket/new.tfrecord", storage_options=options) as writer:
            await writer.write(b"record")


def test_the_log_and_the_counters(store: ObjectStore) -> None:
    asked = [(KEY, {"Range": "bytes=10-19"}, "GET"), (KEY, {}, "HEAD"), ("/bucket/no", {}, "GET")]
    for target, headers, method in asked:
        ask(store.url, target, headers, method)
        assert store.wait_idle()  # so that no two are ever in flight
    read, stat, missing = store.log
    assert (read.kind, read.object, read.range, read.start) == ("read", "bucket/dir/key", "bytes=10-19", 10)
    assert (read.status, read.promised, read.sent, read.fault, read.done) == (206, 10, 10, "", True)
    assert (stat.kind, stat.status, stat.sent) == ("stat", 200, 0)
    assert missing.status == 404
    counters = store.counters
    assert (counters.requests, counters.connections, counters.in_flight, counters.peak_in_flight) == (
        3,
        3,
        0,
        1,
    )
    assert counters.by_kind == {"read": 2, "stat": 1}
    assert counters.by_status == {"206": 1, "200": 1, "404": 1}
    store.clear()
    assert store.log == ()
    assert store.counters.requests == 0


def test_it_listens_on_loopback_alone(store: ObjectStore) -> None:
    assert urlsplit(store.url).hostname == "127.0.0.1"
    with socket.create_server(("127.0.0.2", urlsplit(store.url).port or 0)):
        pass  # were it on every address, this one would be taken


def test_a_client_that_vanishes_harms_no_other(store: ObjectStore, root: Path, content: bytes) -> None:
    with (root / "bucket" / "big").open("wb") as file:
        file.truncate(64 << 20)  # more than the socket's buffers hold
    for _ in range(3):
        sock = socket.create_connection(("127.0.0.1", urlsplit(store.url).port or 0))
        sock.sendall(b"GET /bucket/big HTTP/1.1\r\n\r\n")
        sock.recv(10)
        sock.close()
    assert store.wait_idle()
    assert all(entry.done and entry.status == 200 for entry in store.log)
    assert ask(store.url, KEY).body == content


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nx" + b"y" * 70_000, b"GET / HT"])
def test_what_is_no_request_is_answered_400(store: ObjectStore, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", urlsplit(store.url).port or 0)) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(12) == b"HTTP/1.1 400"


def test_closing_breaks_off_what_is_under_way(root: Path) -> None:
    with (root / "bucket" / "big").open("wb") as file:
        file.truncate(64 << 20)
    socks = []
    with ObjectStore(root, replace(NO_FAULTS, script=("", "stall"))) as store:
        address = ("127.0.0.1", urlsplit(store.url).port or 0)
        for head in (b"GET /bucket/big HTTP/1.1\r\n\r\n",) * 2 + (b"GET /half", b""):
            socks.append(socket.create_connection(address))
            socks[-1].sendall(head)
        assert [sock.recv(8) for sock in socks[:2]] == [b"HTTP/1.1"] * 2
        store.close()  # a body, a stall, half a head, an idle connection
    for sock in socks:
        sock.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_closing_does_not_wait_for_a_delay(root: Path) -> None:
    with ObjectStore(root, replace(NO_FAULTS, slow=1.0, slow_first_byte=3600.0)) as store:
        sock = socket.create_connection(("127.0.0.1", urlsplit(store.url).port or 0))
        sock.sendall(b"GET /bucket/dir/key HTTP/1.1\r\n\r\n")
    sock.close()


def test_a_root_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="make it"):
        ObjectStore(tmp_path / "nothing")


def test_the_kernel_paces_each_connection(store: ObjectStore) -> None:
    connection = HTTPConnection(urlsplit(store.url).netloc)
    for rate in (None, 5e6, 7e6, None):
        store.faults = replace(NO_FAULTS, rate=rate)
        connection.request("GET", KEY)
        connection.getresponse().read()
    connection.close()
    assert store.wait_idle()
    assert [entry.rate for entry in store.log] == [None, 5_000_000, 7_000_000, None]
    assert {entry.connection for entry in store.log} == {0}


def test_pacing_is_the_socket_option() -> None:
    with socket.socket() as sock:
        assert wire.pacing(sock) is None
        wire.pace(sock, 60e6)
        assert int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, 47, 8), "little") == 60_000_000
        wire.pace(sock, None)
        assert wire.pacing(sock) is None


def test_a_file_is_sent_up_to_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"0123456789")
    ours, theirs = socket.socketpair()
    with ours, theirs, path.open("rb") as file:
        assert wire.send_file(ours, file.fileno(), 4, 99) == 6
        assert wire.send_masked(ours, file.fileno(), 8, 99, 1) == 2
        assert theirs.recv(99) == b"45678998"
    assert os.path.getsize(path) == 10
