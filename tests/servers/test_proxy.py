"""The proxy before the simulated store, and before a server that answers as the test says."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.network.http1 import Reader, Request, parse_request
from tests.servers.network.server import Server
from tests.servers.objectstore import ObjectStore
from tests.servers.plainclient import ask
from tests.servers.proxy import FaultProxy
from tests.servers.requestlog import Entry, repeated_bytes

KEY = "/bucket/dir/key"
RANGE = {"Range": "bytes=100000-199999"}


@pytest.fixture
def proxy(store: ObjectStore) -> Iterator[FaultProxy]:
    """A proxy before the store, without faults."""
    with FaultProxy(store.url) as proxy:
        yield proxy


def last(proxy: FaultProxy) -> Entry:
    """The entry of the request that has just ended."""
    assert proxy.wait_idle()
    return proxy.log[-1]


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", KEY, {}),
        ("GET", KEY, RANGE),
        ("HEAD", KEY, {}),
        ("GET", "/bucket/nothing", {}),
        ("GET", KEY, {"Range": "bytes=400000-"}),
        ("GET", "/bucket?list-type=2", {}),
        ("GET", "/bucket/empty", {}),
        ("PUT", KEY, {}),
    ],
)
def test_no_fault_changes_nothing(
    store: ObjectStore, proxy: FaultProxy, method: str, target: str, headers: dict[str, str]
) -> None:
    direct, through = (ask(url, target, headers, method) for url in (store.url, proxy.url))
    assert (through.status, through.body, through.error) == (direct.status, direct.body, None)
    assert dict(through.headers) == dict(direct.headers)
    assert last(proxy).status == direct.status


@pytest.mark.parametrize(
    ("fault", "status", "start", "stop", "error"),
    [
        ("reset", 206, 100_000, 150_000, ConnectionResetError),
        ("cut", 206, 100_000, 150_000, IncompleteRead),
        ("truncate", 206, 100_000, 150_000, None),
        ("wrong_content_range", 206, 150_000, 200_000, None),
        ("ignore_range", 200, 0, 300_000, None),
        ("stall", 206, 100_000, 150_000, TimeoutError),
    ],
)
def test_bodies_suffer_as_they_do_in_the_store(
    proxy: FaultProxy, content: bytes, fault: str, status: int, start: int, stop: int, error: type | None
) -> None:
    proxy.faults = Faults.from_dict({"first_byte": 0, "jitter": 0, fault: 1.0, "at": 0.5})
    answer = ask(proxy.url, KEY, RANGE, seconds=0.5 if fault == "stall" else 30)
    assert (answer.status, answer.body) == (status, content[start:stop])
    assert type(answer.error) is (error or type(None))
    entry = last(proxy)
    assert (entry.fault, entry.sent, entry.start) == (fault, stop - start, start)
    if fault == "wrong_content_range":
        assert answer.headers["Content-Range"] == "bytes 150000-199999/300000"
    proxy.faults = NO_FAULTS
    assert ask(proxy.url, KEY).body == content


def test_corrupt(proxy: FaultProxy, content: bytes) -> None:
    proxy.faults = replace(NO_FAULTS, corrupt=1.0)
    body = ask(proxy.url, KEY).body
    assert [a ^ b for a, b in zip(body, content, strict=True) if a != b] == [0xFF]


def test_unavailable_never_reaches_the_server(store: ObjectStore, proxy: FaultProxy) -> None:
    proxy.faults = replace(NO_FAULTS, unavailable=1.0, retry_after=3)
    answer = ask(proxy.url, KEY, method="PUT", body=b"new")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "3")
    assert store.log == ()


def test_change_refuses_who_names_a_version(proxy: FaultProxy, content: bytes) -> None:
    etag = ask(proxy.url, KEY, method="HEAD").headers["ETag"]
    proxy.faults = replace(NO_FAULTS, script=("change",) * 4)
    assert ask(proxy.url, KEY, {"If-Match": etag}).status == 412
    media = "/download/storage/v1/b/bucket/o/dir%2Fkey?alt=media"
    assert ask(proxy.url, f"{media}&generation=1").status == 404
    assert ask(proxy.url, f"{media}&ifGenerationMatch=1").status == 412
    assert ask(proxy.url, KEY).body == content
    assert proxy.wait_idle()
    assert [entry.fault for entry in proxy.log] == ["", "change", "change", "change", ""]


def test_connections_to_the_server_are_kept(store: ObjectStore, proxy: FaultProxy) -> None:
    connection = HTTPConnection(urlsplit(proxy.url).netloc, timeout=30)
    for _ in range(5):
        connection.request("GET", KEY)
        connection.getresponse().read()
    connection.close()
    for _ in range(5):
        assert proxy.wait_idle()  # the link is given back after the answer's last byte
        assert ask(proxy.url, KEY).error is None
    assert store.counters.connections == 1
    assert proxy.wait_idle()
    proxy.faults = replace(NO_FAULTS, script=("truncate",))
    ask(proxy.url, KEY)  # leaves half an answer behind: that connection is not used again
    assert ask(proxy.url, KEY).error is None
    assert store.counters.connections == 2


def test_a_connection_that_the_server_closed_is_not_used_again(root: Path, content: bytes) -> None:
    with ObjectStore(root) as first:
        port = urlsplit(first.url).port or 0
        proxy = FaultProxy(first.url)
        assert ask(proxy.url, KEY).body == content
    with proxy, ObjectStore(root, port=port):
        assert ask(proxy.url, KEY).body == content


def test_a_server_that_is_not_there(root: Path) -> None:
    with ObjectStore(root) as gone:
        url = gone.url
    with FaultProxy(url) as proxy:
        answer = ask(proxy.url, KEY)
        assert (answer.status, b"cannot be reached" in answer.body) == (502, True)


@pytest.mark.parametrize("url", ["https://127.0.0.1", "127.0.0.1:80", "http://127.0.0.1/path"])
def test_a_target_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        FaultProxy(url)


def test_a_reader_that_resumes_repeats_nothing(proxy: FaultProxy, content: bytes) -> None:
    proxy.faults = replace(NO_FAULTS, seed=2, reset=0.5, unavailable=0.2)
    got = b""
    while len(got) < len(content):
        answer = ask(proxy.url, KEY, {"Range": f"bytes={len(got)}-"})
        got += answer.body if answer.status == 206 else b""
    assert got == content
    assert proxy.wait_idle()
    assert repeated_bytes(proxy.log) == {}


def test_the_kernel_paces_the_client_side(proxy: FaultProxy, store: ObjectStore) -> None:
    proxy.faults = replace(NO_FAULTS, rate=9e6)
    ask(proxy.url, KEY)
    assert (last(proxy).rate, store.log[-1].rate) == (9_000_000, None)


Script = Callable[[Request, bytes], bytes]


class Scripted:
    """A server that keeps what it was sent and answers as `script` says."""

    def __init__(self, script: Script) -> None:
        self.seen: list[tuple[Request, bytes]] = []
        self._script = script
        self.server = Server(self._serve)
        self.server.start()

    def _serve(self, sock: socket.socket) -> None:
        reader = Reader(sock)
        while (head := reader.head()) is not None:
            request = parse_request(head)
            body = reader.whole(request.framing)
            self.seen.append((request, body))
            answer = self._script(request, body)
            sock.sendall(answer)
            if not answer:
                return


@pytest.fixture
def scripted() -> Iterator[Callable[[Script], tuple[Scripted, FaultProxy]]]:
    """Makes a scripted server and a proxy before it."""
    made: list[tuple[Scripted, FaultProxy]] = []

    def make(script: Script) -> tuple[Scripted, FaultProxy]:
        server = Scripted(script)
        made.append((server, FaultProxy(server.server.url)))
        return made[-1]

    yield make
    for server, proxy in made:
        proxy.close()
        server.server.close()


Make = Callable[[Script], tuple[Scripted, FaultProxy]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def test_uploads_pass_as_they_came(scripted: Make) -> None:
    server, proxy = scripted(lambda request, body: OK)
    body = bytes(range(256)) * 4000
    assert ask(proxy.url, "/b/k?partNumber=1", {"X-Odd-CASE": "v"}, "PUT", body).body == b"ok"
    request, seen = server.seen[0]
    assert (request.method, request.target, seen) == ("PUT", "/b/k?partNumber=1", body)
    assert ("X-Odd-CASE", "v") in request.fields
    assert ("Host", urlsplit(proxy.url).netloc) in request.fields
    assert last(proxy).received == len(body)


def test_uploads_in_chunks_pass_as_they_came(scripted: Make) -> None:
    server, proxy = scripted(lambda request, body: OK)
    connection = HTTPConnection(urlsplit(proxy.url).netloc, timeout=30)
    connection.request(
        "PUT", "/b/k", iter([b"abc", b"d" * 100_000]), {"Transfer-Encoding": "chunked"}, encode_chunked=True
    )
    assert connection.getresponse().read() == b"ok"
    connection.close()
    assert server.seen[0][1] == b"3\r\nabc\r\n186A0\r\n" + b"d" * 100_000 + b"\r\n0\r\n\r\n"


def test_who_expects_100_is_told_to_go_on(scripted: Make) -> None:
    server, proxy = scripted(lambda request, body: b"HTTP/1.1 100 Continue\r\n\r\n" + OK)
    with socket.create_connection(("127.0.0.1", urlsplit(proxy.url).port or 0)) as sock:
        sock.sendall(b"PUT /b/k HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        reader = Reader(sock)
        assert reader.head() == b"HTTP/1.1 100 Continue"
        sock.sendall(b"abc")
        assert (reader.head() or b"").startswith(b"HTTP/1.1 200")
    assert server.seen[0][1] == b"abc"


def test_who_expects_100_may_get_503(scripted: Make) -> None:
    server, proxy = scripted(lambda request, body: OK)
    proxy.faults = replace(NO_FAULTS, unavailable=1.0)
    with socket.create_connection(("127.0.0.1", urlsplit(proxy.url).port or 0)) as sock:
        sock.sendall(b"PUT /b/k HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        reader = Reader(sock)
        assert (reader.head() or b"").startswith(b"HTTP/1.1 503")
        assert b"SlowDown" in reader.whole("close")
    assert server.seen == []


def test_upload_reset(scripted: Make) -> None:
    server, proxy = scripted(lambda request, body: OK)
    proxy.faults = replace(NO_FAULTS, upload_reset=1.0, at=0.5)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        ask(proxy.url, "/b/k", method="PUT", body=b"x" * 1_000_000)
    entry = last(proxy)
    assert (entry.fault, entry.received, entry.status) == ("upload_reset", 500_000, 0)
    assert ask(proxy.url, "/b/k", method="POST").body == b"ok"  # no body to break off
    assert [len(body) for request, body in server.seen if request.method == "PUT"] in ([], [500_000])


def test_upload_stall(scripted: Make) -> None:
    server, proxy = scripted(lambda request, body: OK)
    proxy.faults = replace(NO_FAULTS, upload_stall=1.0, at=0.5)
    with pytest.raises(TimeoutError):
        ask(proxy.url, "/b/k", method="PUT", body=b"x" * 1_000_000, seconds=0.5)
    entry = last(proxy)
    assert (entry.fault, entry.received, entry.status) == ("upload_stall", 500_000, 0)
    assert ask(proxy.url, "/b/k", method="POST").body == b"ok"  # no body to stall
    assert [len(body) for request, body in server.seen if request.method == "PUT"] in ([], [500_000])


def test_how_far_a_resumable_upload_is(scripted: Make) -> None:
    """The server says it once, and the client misses it; the proxy says it again. Who has ended asks the server."""

    def script(request: Request, body: bytes) -> bytes:
        if "uploadType=resumable" in request.target:
            return f"HTTP/1.1 200 OK\r\nLocation: {server.server.url}/up?id=1\r\nContent-Length: 0\r\n\r\n".encode()
        if body == b"first":
            return b"HTTP/1.1 308 \r\nRange: bytes=0-4\r\nContent-Length: 0\r\n\r\n"
        return OK

    def asked() -> tuple[int, str | None]:
        answer = ask(proxy.url, "/up?id=1", {"Content-Range": "bytes */*"}, "PUT")
        return answer.status, answer.headers["Range"]

    server, proxy = scripted(script)
    assert asked() == (200, None)  # of a session that the proxy does not know, the server tells
    ask(proxy.url, "/upload/storage/v1/b/b/o?uploadType=resumable", method="POST")
    assert asked() == (308, None)
    proxy.faults = replace(NO_FAULTS, script=("lost_answer",))
    with pytest.raises(ConnectionError):
        ask(proxy.url, "/up?id=1", method="PUT", body=b"first")
    assert asked() == (308, "bytes=0-4")
    ask(proxy.url, "/up?id=1", method="PUT", body=b"last")
    assert asked() == (200, None)


def test_lost_answer(scripted: Make) -> None:
    server, proxy = scripted(lambda request, body: OK)
    proxy.faults = replace(NO_FAULTS, script=("lost_answer",))
    with pytest.raises(ConnectionError):
        ask(proxy.url, "/b/k", method="PUT", body=b"abc")
    assert [body for _, body in server.seen] == [b"abc"]
    assert (last(proxy).fault, last(proxy).status) == ("lost_answer", 0)
    assert ask(proxy.url, "/b/k", method="PUT", body=b"abc").body == b"ok"


def test_a_location_stays_behind_the_proxy(scripted: Make) -> None:
    def script(request: Request, body: bytes) -> bytes:
        place = server.server.url
        return f"HTTP/1.1 200 OK\r\nLocation: {place}/up?id=1\r\nContent-Length: 0\r\n\r\n".encode()

    server, proxy = scripted(script)
    assert ask(proxy.url, "/b/k", method="POST").headers["Location"] == f"{proxy.url}/up?id=1"


def test_answers_in_chunks_and_without_a_length_pass_unharmed(scripted: Make) -> None:
    def script(request: Request, body: bytes) -> bytes:
        if request.target == "/b/chunks":
            return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
        return b"HTTP/1.1 299 \r\nContent-Length: 0\r\n\r\n"

    _, proxy = scripted(script)
    proxy.faults = replace(NO_FAULTS, corrupt=1.0)
    assert ask(proxy.url, "/b/chunks").body == b"ok"
    assert ask(proxy.url, "/b/other").status == 299
    assert proxy.wait_idle()
    assert proxy.counters.by_fault == {}


def test_a_server_that_answers_nothing(scripted: Make) -> None:
    _, proxy = scripted(lambda request, body: b"")
    assert ask(proxy.url, KEY).status == 502


def test_a_server_that_answers_nonsense(scripted: Make) -> None:
    _, proxy = scripted(lambda request, body: b"nonsense\r\n\r\n")
    assert ask(proxy.url, KEY).status == 502


def test_closing_breaks_off_what_waits_for_the_server(root: Path) -> None:
    with ObjectStore(root, replace(NO_FAULTS, slow=1.0, slow_first_byte=3600.0)) as store:
        proxy = FaultProxy(store.url)
        sock = socket.create_connection(("127.0.0.1", urlsplit(proxy.url).port or 0))
        sock.sendall(f"GET {KEY} HTTP/1.1\r\n\r\n".encode())
        while not store.log:
            ask(store.url, "/_control")  # one round trip after the other until the request is there
        proxy.close()
        sock.close()
