"""What counts as a page of a portal, a proxy or a gateway in place of an object."""

import pytest

from streamrec.storage.arrivals import is_page, is_unreadable, may_be_page

PAGE = b"<!DOCTYPE html><title>Log in</title>"
TEXT = b"Please log in"
XML = b'<?xml version="1.0"?><Error/>'
SHARD = bytes(12)


@pytest.mark.parametrize(
    ("head", "headers", "path", "of_store", "version", "expected"),
    [
        (PAGE, {}, "b/x.tfrecord", True, None, True),
        (PAGE, {}, "b/manifest.json", True, "v1", True),  # no manifest is HTML
        (PAGE, {}, "b/x.tfrecord", False, None, True),
        (TEXT, {"Content-Type": "text/html; charset=utf-8"}, "b/x", False, None, True),
        (TEXT, {"content-type": "application/xhtml+xml"}, "b/x.txt", True, "v1", True),
        (TEXT, {"Content-Type": "text/plain"}, "b/x.tfrecord", True, None, True),
        (TEXT, {}, "b/x.tfrecord", True, "v1", False),  # a store that answers with a version
        (TEXT, {}, "b/x.tfrecord", False, None, False),  # a web server gives none
        (TEXT, {}, "b/notes.TXT", True, None, False),
        (TEXT, {}, "b/x.index?versionId=3", True, None, False),
        (XML, {}, "b/x.tfrecord", True, None, True),
        (SHARD, {"Content-Type": "text/html"}, "b/x.tfrecord", True, None, False),
        (b"", {}, "b/x.tfrecord", True, None, False),
    ],
)
def test_a_text_in_place_of_an_object_is_a_page(
    head: bytes,
    headers: dict[str, str],
    path: str,
    of_store: bool,
    version: str | None,
    expected: bool,
) -> None:
    assert is_page(head, headers, path, of_store=of_store, version=version) is expected


@pytest.mark.parametrize(
    ("headers", "version", "expected"),
    [
        ({}, None, True),
        ({}, "v1", False),
        ({"Content-Type": "text/html"}, "v1", True),
        ({"Content-Type": "application/json; charset=utf-8"}, "v1", True),
        ({"Content-Type": "application/octet-stream"}, "v1", False),
        ({"X-Amz-Request-Id": "1"}, None, False),  # only a store sends it
        ({"Content-Type": "text/html", "x-goog-hash": "1"}, None, False),
    ],
)
def test_a_body_is_looked_at_unless_a_store_has_marked_it(
    headers: dict[str, str], version: str | None, expected: bool
) -> None:
    assert may_be_page(headers, version) is expected


def test_only_some_codings_cannot_be_decoded() -> None:
    assert not is_unreadable(None)
    assert not is_unreadable("gzip, zstd")
    assert is_unreadable("gzip, br")
