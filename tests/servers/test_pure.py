"""Shapes, ranges, routes, pages, picked bodies: each against a slow and plain account of the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.faults import FAULTS_OF, Fate
from tests.servers.network.http1 import BadRequestError, Request, parse_request, parse_response, window
from tests.servers.network.relay import forwarded, picked, upload_limit
from tests.servers.network.shapes import Piece, shape
from tests.servers.requestlog import Entry, repeated_bytes
from tests.servers.store.listing import Found, page
from tests.servers.store.routes import route

shares = st.floats(0, 1, exclude_max=True)


@given(st.sampled_from(["", *FAULTS_OF["read"]]), shares, st.integers(0, 1000), st.booleans())
def test_a_shape_lies_within_its_body(fault: str, at: float, length: int, partial: bool) -> None:
    made = shape(fault, at, length, partial=partial)
    assert all(0 <= piece.start <= piece.stop <= length for piece in made.pieces)
    assert made.bytes_sent <= made.promised <= length
    assert made.fault in ("", fault)
    if made.ending == "whole":
        assert made.bytes_sent == made.promised
    else:
        assert made.bytes_sent < made.promised == length


@given(shares, st.binary(min_size=1, max_size=50))
def test_corruption_is_one_flipped_byte(at: float, body: bytes) -> None:
    bad = b"".join(picked([memoryview(body)], shape("corrupt", at, len(body), partial=False).pieces))
    assert [one ^ other for one, other in zip(body, bad, strict=True) if one != other] == [0xFF]


@given(st.lists(st.binary(max_size=9), max_size=9), st.lists(st.tuples(st.integers(0, 99), st.integers(0, 255))))
def test_picked_pieces_are_slices_of_the_whole(chunks: list[bytes], cuts: list[tuple[int, int]]) -> None:
    body, places = b"".join(chunks), sorted({0, *(cut for cut, _ in cuts)})
    masks = [mask for _, mask in cuts] or [0]
    pieces = [Piece(a, b, masks[a % len(masks)]) for a, b in zip(places[::2], places[1::2], strict=False)]
    wanted = b"".join(bytes(x ^ p.mask for x in body[p.start : p.stop]) for p in pieces)
    assert b"".join(picked((memoryview(chunk) for chunk in chunks), pieces)) == wanted


def test_nothing_is_read_past_the_last_piece() -> None:
    def chunks() -> Any:
        yield memoryview(b"0123")
        raise AssertionError("read on")

    assert b"".join(picked(chunks(), [Piece(0, 4)])) == b"0123"
    assert b"".join(picked(chunks(), [])) == b""


@given(st.integers(0, 20), st.integers(0, 25), st.integers(0, 25))
def test_a_closed_range_is_a_slice(size: int, first: int, last: int) -> None:
    status, start, stop = window(f"bytes={first}-{last}", size)
    if last < first:
        assert (status, start, stop) == (200, 0, size)
    elif first >= size:
        assert status == 416
    else:
        assert (status, bytes(range(size))[start:stop]) == (206, bytes(range(size))[first : last + 1])


@pytest.mark.parametrize("value", ["", "bytes=", "bytes=-", "bytes=0-1,3-4", "items=0-1", "bytes=a-b", "bytes=٣-"])
def test_a_range_that_is_none_is_ignored(value: str) -> None:
    assert window(value, 10) == (200, 0, 10)


def test_a_suffix() -> None:
    assert window("bytes=-4", 10) == (206, 6, 10)
    assert window("bytes=-40", 10) == (206, 0, 10)
    assert window("bytes=-0", 10)[0] == window("bytes=-1", 0)[0] == 416


@pytest.mark.parametrize(
    ("method", "target", "op", "kind", "name"),
    [
        ("GET", "/", "buckets", "list", "/"),
        ("GET", "/b/", "list", "list", "b/"),
        ("HEAD", "/b", "bucket", "list", "b/"),
        ("HEAD", "/b/k", "metadata", "stat", "b/k"),
        ("GET", "/b/d/k%2B%20x", "media", "read", "b/d/k+ x"),
        ("GET", "/b/k?X-Amz-Signature=1", "media", "read", "b/k"),
        ("GET", "/b/k?uploadId=1", "other", "list", "b/k"),
        ("PUT", "/b/k?partNumber=1&uploadId=1", "other", "write", "b/k"),
        ("GET", "/storage/v1/b", "buckets", "list", "/"),
        ("GET", "/storage/v1/b/b", "bucket", "list", "b/"),
        ("GET", "/storage/v1/b/b/o?prefix=p", "list", "list", "b/"),
        ("GET", "/storage/v1/b/b/o/d%2Fk", "metadata", "stat", "b/d/k"),
        ("GET", "/download/storage/v1/b/b/o/d%2Fk?alt=media", "media", "read", "b/d/k"),
        ("POST", "/upload/storage/v1/b/b/o?uploadType=resumable&name=d%2Fk", "other", "write", "b/d/k"),
    ],
)
def test_routes(method: str, target: str, op: str, kind: str, name: str) -> None:
    found = route(method, target)
    assert (found.op, found.kind, found.name) == (op, kind, name)


keys = st.sets(st.text("ab/", min_size=1, max_size=5), max_size=30)


@given(keys, st.sampled_from(["", "a", "a/", "b/a"]), st.sampled_from(["", "/"]), st.integers(1, 4))
def test_pages_join_to_the_whole_listing(names: set[str], prefix: str, delimiter: str, limit: int) -> None:
    items = [Found(key, 1, 0) for key in sorted(names) if key.startswith(prefix)]
    whole = page(items, prefix, delimiter, "", 1000)
    found: list[Found] = []
    prefixes: list[str] = []
    token = ""
    while True:
        part = page(items, prefix, delimiter, token, limit)
        assert len(part.found) + len(part.prefixes) <= limit
        found += part.found
        prefixes += part.prefixes
        token = part.token
        if not token:
            break
    assert (tuple(found), tuple(prefixes)) == (whole.found, whole.prefixes)
    if delimiter:
        rests = {name: name.removeprefix(prefix) for name in (item.key for item in items)}
        assert {item.key for item in found} == {name for name, rest in rests.items() if "/" not in rest}
        folded = {prefix + rest.partition("/")[0] + "/" for rest in rests.values() if "/" in rest}
        assert set(prefixes) == folded
        assert len(prefixes) == len(folded)


@pytest.mark.parametrize("head", [b"", b"GET /", b"GET / SPDY/1", b"GET x HTTP/1.1", b"GET / HTTP/1.1\r\nno colon"])
def test_what_is_no_request_is_refused(head: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_request(head)


def test_a_length_that_is_none_is_refused() -> None:
    with pytest.raises(BadRequestError, match="Content-Length"):
        parse_request(b"PUT /b/k HTTP/1.1\r\nContent-Length: -1")


def test_framing_of_answers() -> None:
    sized = parse_response(b"HTTP/1.1 200 OK\r\nContent-Length: 5")
    assert [sized.framing("GET"), sized.framing("HEAD")] == [5, 0]
    assert parse_response(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked").framing("GET") == "chunked"
    assert parse_response(b"HTTP/1.1 200 OK").framing("GET") == "close"
    assert parse_response(b"HTTP/1.1 204 No Content").framing("GET") == 0


def test_a_signed_range_is_passed_on() -> None:
    signed = ("Authorization", "AWS4-HMAC-SHA256 Credential=x, SignedHeaders=host;range, Signature=y")
    asked = Request("GET", "/b/k", (("Range", "bytes=0-1"), signed))
    assert forwarded(asked, "ignore_range").fields == asked.fields


@pytest.mark.parametrize("fault", ["upload_reset", "upload_stall"])
def test_only_uploads_with_a_body_break(fault: str) -> None:
    fate = Fate(fault, 0.5, 0.0, False)
    assert [upload_limit(fate, 10), upload_limit(fate, 0), upload_limit(fate, "chunked")] == [5, None, 32768]
    assert upload_limit(Fate("", 0.5, 0.0, False), 10) is None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=8))
def test_repeated_bytes_are_those_sent_more_than_once(spans: list[tuple[int, int]]) -> None:
    entries = [
        Entry(n, 0.0, 0, "read", "GET", "/b/k", "b/k", start=start, status=206, sent=sent)
        for n, (start, sent) in enumerate(spans)
    ]
    distinct = {byte for start, sent in spans for byte in range(start, start + sent)}
    repeated = sum(sent for _, sent in spans) - len(distinct)
    assert repeated_bytes(entries) == ({"b/k": repeated} if repeated else {})
