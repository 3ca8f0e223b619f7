"""Checks the answers of S3 before botocore parses them. Pure.

botocore takes any status below 300 for success, an empty body for an empty result, and a page that
is not XML for a "500 Internal Server Error". So a captive portal, a proxy or a gateway could answer
for the store: its 204 would be an empty listing, its page an error that names the wrong server.

Answers with the bytes of an object are not parsed: `faults.http_body_range` checks those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from streamrec.lazy import lazy_pattern
from streamrec.storage.arrivals import HEAD_BYTES, describe_answer, describe_page, is_marked
from streamrec.storage.faults import Cause, TransientError

_OF_METHOD: Final = {"GET": {200, 206}, "DELETE": {200, 204}}
_ROOT: Final = lazy_pattern(rb"\s*(<\?[^>]*>\s*|<!--.*?-->\s*)*<([\w:.-]+)[^>]*?(/?)>", re.DOTALL)


def check_answer(
    method: str, status: int, headers: Mapping[str, str], body: bytes, sender: str
) -> None:
    """Refuses an answer below 300, with its whole body, that is not one of S3: a TransientError."""
    if status < 300 and is_foreign(method, status, headers, body):
        said = describe_answer(status, headers, body[:HEAD_BYTES], sender)
        raise TransientError(Cause.WRONG_ANSWER, f"{said} where the store's answer was expected")


def is_foreign(method: str, status: int, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether an answer below 300 is not one of S3.

    >>> is_foreign("PUT", 200, {}, b""), is_foreign("PUT", 202, {}, b"")
    (False, True)
    >>> is_foreign("GET", 200, {}, b"<R><Key>a</Key></R>"), is_foreign("GET", 200, {}, b"<R><Key>a")
    (False, True)
    >>> is_foreign("HEAD", 200, {"Content-Type": "text/html"}, b"")
    True
    """
    if status not in _OF_METHOD.get(method, {200}):
        return True
    text = body.lstrip()  # spaces keep the connection open while parts are put together
    page = describe_page(text[:HEAD_BYTES])
    if text and method not in ("GET", "POST"):  # of these, no body is parsed
        return page is not None and page.startswith("an HTML page")
    if text:
        root = _ROOT.match(text)
        if page is None or not page.startswith("an XML document") or root is None:
            return True
        return not root[3] and not text.rstrip().endswith(b"</" + root[2] + b">")
    found = {name.lower(): value for name, value in headers.items()}
    is_html = found.get("content-type", "").lower().startswith(("text/html", "application/xhtml"))
    return method == "HEAD" and is_html and "etag" not in found and not is_marked(headers)
