"""Describes answers of HTTP servers for error messages: what arrived, from whom, what it looks
like. Pure.

A captive portal, a proxy or a gateway may answer in place of a store. Its page must never count as
an object's bytes, and an error about it must show that it is not the store's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from streamrec.display import shorten
from streamrec.lazy import lazy_pattern

HEAD_BYTES: Final = 512
"""How many of a body's first bytes are enough to recognise a page."""

STORE_HEADERS: Final = ("x-amz-", "x-goog-", "x-guploader-", "x-ms-")
"""The beginnings of the names of headers that only object stores send, in lower case."""

_BOM: Final = b"\xef\xbb\xbf"
_HTML: Final = lazy_pattern(
    rb"(<!--.*?-->\s*|<\?xml[^>]*>\s*)*<(!doctype\s+html|html|head|body|title|meta|script|center)\b",
    re.IGNORECASE | re.DOTALL,
)
_TITLE: Final = lazy_pattern(rb"<title[^>]*>(.*?)(</title>|$)", re.IGNORECASE | re.DOTALL)
_XML: Final = lazy_pattern(rb"(<!--.*?-->\s*|<\?[^>]*>\s*)*<([A-Za-z][\w:.-]*)", re.DOTALL)
_JSON: Final = lazy_pattern(rb"[{\[]\s*([\"{\[}\]]|$)")
_BINARY: Final = lazy_pattern(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_TEXT_FILES: Final = lazy_pattern(
    r".*\.(csv|idx|index|json|jsonl|ndjson|md|tsv|txt|ya?ml)", re.IGNORECASE | re.DOTALL
)


def describe_page(head: bytes) -> str | None:
    """Describes the beginning of a body that is a text; None if it is not one.

    >>> describe_page(b"<html><head><title>Log in</title>"), describe_page(b"<?xml ?><Error>")
    ("an HTML page with the title 'Log in'", 'an XML document <Error>')
    >>> describe_page(b"Please log in"), describe_page(bytes(12))
    ("a text that begins with 'Please log in'", None)
    """
    text = head.removeprefix(_BOM).lstrip()
    if not text or _BINARY.search(head):
        return None
    if _HTML.match(text):
        title = _TITLE.search(text)
        named = " ".join(title[1].decode(errors="replace").split()) if title else ""
        return f"an HTML page with the title {shorten(named, 60)!r}" if named else "an HTML page"
    if (root := _XML.match(text)) is not None:
        return f"an XML document <{root[2].decode()}>"
    begins = shorten(" ".join(text[:60].decode(errors="replace").split()), 60)
    if _JSON.match(text):
        return f"JSON that begins with {begins!r}"
    try:
        head[: HEAD_BYTES - 4].decode()
    except UnicodeDecodeError:
        return None
    return f"a text that begins with {begins!r}"


def describe_answer(
    status: int, headers: Mapping[str, str], head: bytes = b"", sender: str = ""
) -> str:
    """Describes an answer: its status, what its body looks like, and which server sent it.

    The names of `headers` may be in any case, if the mapping ignores it. `sender` is the server's
    address.

    >>> describe_answer(204, {})
    'a 204 (No Content)'
    >>> describe_answer(200, {"Content-Type": "text/html", "Server": "portal"}, b"<html>", "10.0.0.1:80")
    'an HTML page (a 200, text/html, from 10.0.0.1:80, Server: portal)'
    """  # noqa: E501
    found = {name.lower(): value for name, value in headers.items()}

    def named(*titles: str) -> list[str]:
        """The headers of these names that the answer has."""
        values = [(title, found.get(title.lower())) for title in titles]
        return [f"{title}: {value}" for title, value in values if value]

    try:
        said = f"a {status} ({HTTPStatus(status).phrase})" if status != 200 else "a 200"
    except ValueError:  # a number that HTTP does not have
        said = f"a {status}"
    details = []
    if found.get("content-type"):
        details.append(found["content-type"])
    details += named("Content-Encoding", "Location")
    # A proxy or a portal between shows itself by the address, or by these names.
    if sender:
        details.append(f"from {sender}")
    details += named("Server", "Via")
    page = describe_page(head)
    if page is not None:
        return f"{page} ({', '.join([said, *details])})"
    return said + (f" ({', '.join(details)})" if details else "")


UNREADABLE: Final = frozenset({"br", "compress", "x-compress", "dcb", "dcz"})
"""Content codings that no shard has: what is encoded in one of them cannot be read."""


def codings_of(headers: Mapping[str, str]) -> str | None:
    """Returns the Content-Encoding of an answer, if it is one that may change the bytes.

    S3's `aws-chunked` is left in the metadata of uploads, and means nothing.

    >>> codings_of({"Content-Encoding": "GZIP"}), codings_of({"Content-Encoding": "aws-chunked"})
    ('gzip', None)
    """
    value = headers.get("Content-Encoding") or headers.get("content-encoding")
    if not value:  # nearly all answers
        return None
    codings = [coding.strip().lower() for coding in value.split(",")]
    left = [coding for coding in codings if coding not in ("", "identity", "aws-chunked")]
    return ", ".join(left) or None


def is_unreadable(codings: str | None) -> bool:
    """Whether an answer's codings include one that cannot be decoded."""
    return codings is not None and not UNREADABLE.isdisjoint(codings.split(", "))


def is_marked(headers: Mapping[str, str]) -> bool:
    """Whether an answer has a header that only object stores send."""
    return any(name.lower().startswith(STORE_HEADERS) for name in headers)


def may_be_page(headers: Mapping[str, str], version: str | None) -> bool:
    """Whether the body's first bytes must be looked at: the answer has no mark of a store, and
    claims to be a text, or has no version.
    """
    kind = _content_type(headers)
    claims = version is None or kind.startswith("text/") or kind.endswith(("json", "xml"))
    # All names of headers are looked at last: for a small object that costs as much as its bytes.
    return claims and not is_marked(headers)


def is_page(
    head: bytes, headers: Mapping[str, str], path: str, *, of_store: bool, version: str | None
) -> bool:
    """Whether a body is a page in place of an object, given its first bytes.

    An object of a text format, such as a manifest, is JSON or plain text, and never HTML.
    `of_store` is whether the object is in a store that gives each answer a version: without one, a
    text is not the store's.
    """
    page = describe_page(head)
    if page is None:
        return False
    if page.startswith("an HTML page") or _content_type(headers) in (
        "text/html",
        "application/xhtml+xml",
    ):
        return True
    is_text_file = _TEXT_FILES.fullmatch(path.partition("?")[0]) is not None
    return of_store and version is None and not is_text_file


def _content_type(headers: Mapping[str, str]) -> str:
    value = headers.get("Content-Type") or headers.get("content-type") or ""
    return value.partition(";")[0].strip().lower()
