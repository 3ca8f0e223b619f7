"""Signatures of further GETs: what botocore works out anew for each request is worked out once a bucket and day.

Signing through the client takes 0.2 ms of processor time, because it builds and canonicalizes a request. A GET of
another object differs from a signed one in its path, its range and its time only, so two hashes are all that is left.

Rules:
- A signature is learnt from a request that the client's own signer has signed. It counts only if the same algorithm
  gives the very signature that the client gave.
- It holds for the credentials that it was learnt with. Others are learnt anew, from the client.
- Where somebody but botocore listens to the events of signing (`signing_is_plain`), nothing is learnt: a handler may
  change each request.

The algorithm: "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)", Amazon S3 API
Reference.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

__all__ = ["Keys", "Signature", "signing_is_plain"]

OURS: Final = ("botocore.", "aiobotocore.", "streamrec.")
EVENTS: Final = ("before-sign.s3.GetObject", "choose-signer.s3.GetObject")

_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/,]+)/(\d{8})/([^/,]+)/([^/,]+)/aws4_request, "
    r"SignedHeaders=([^,]+), Signature=([0-9a-f]{64})"
)
_OF_ONE_REQUEST: Final = frozenset({"range", "if-match", "x-amz-date"})

Keys = tuple[str, str, str | None]
"""Access key, secret key, session token."""


def signing_is_plain(events: Any) -> bool:
    """Whether nobody but botocore, aiobotocore and streamrec listens to the events of signing a GET."""
    handlers = getattr(events, "_emitter", events)._handlers
    return all(
        str(getattr(handler, "__module__", "")).startswith(OURS)
        for event in EVENTS
        for handler in handlers.prefix_search(event)
    )


@dataclass(slots=True)
class Signature:
    """How GETs of one bucket are signed. Made by `learnt`.

    Args:
        keys: The credentials.
        region: Of the signature's scope.
        service: Of the signature's scope.
        fixed: Headers that are signed and the same for all objects, in lower case.
        path: What stands before an object's key in the path.
    """

    keys: Keys
    region: str
    service: str
    fixed: Mapping[str, str]
    path: str
    _day: str = ""
    _key: bytes = b""

    @classmethod
    def learnt(cls, keys: Keys, base: str, quoted: str, headers: Mapping[str, str]) -> Signature | None:
        """From a signed GET; None where its signature is of another kind, or not found to be the same.

        Args:
            keys: What it was signed with, as far as is known.
            base: Its URL up to the key.
            quoted: The key as it stands in the URL.
            headers: Its headers, those of the signature among them.
        """
        given = {name.lower(): value for name, value in headers.items()}
        found = _AUTHORIZATION.fullmatch(given.get("authorization", ""))
        if found is None or found[1] != keys[0] or "x-amz-content-sha256" not in given or "x-amz-date" not in given:
            return None
        parts = urlsplit(base)
        given.setdefault("host", parts.netloc)
        names = found[5].split(";")
        if parts.query or not given.keys() >= set(names):
            return None
        fixed = {name: given[name] for name in names if name not in _OF_ONE_REQUEST}
        own = {name: given[name] for name in names if name in _OF_ONE_REQUEST and name != "x-amz-date"}
        made = cls(keys, found[3], found[4], fixed, parts.path)
        return made if made.headers(quoted, own, given["x-amz-date"])["Authorization"] == found[0] else None

    def headers(self, quoted: str, own: Mapping[str, str], now: str | None = None) -> dict[str, str]:
        """The headers of a signature.

        Args:
            quoted: The object's key as it stands in the URL.
            own: The request's own headers: Range, If-Match.
            now: The time as "YYYYMMDDTHHMMSSZ"; None for the clock's.
        """
        now = now or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        signed = {**self.fixed, "x-amz-date": now, **{name.lower(): value for name, value in own.items()}}
        names = sorted(signed)
        lines = "\n".join([f"{name}:{' '.join(signed[name].split())}" for name in names])
        content, listed = self.fixed["x-amz-content-sha256"], ";".join(names)
        request = f"GET\n{self.path}{quoted}\n\n{lines}\n\n{listed}\n{content}"
        scope = f"{now[:8]}/{self.region}/{self.service}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{sha256(request.encode()).hexdigest()}"
        signature = hmac.digest(self._key_of(now[:8]), text.encode(), "sha256").hex()
        credential = f"AWS4-HMAC-SHA256 Credential={self.keys[0]}/{scope}"
        made = {
            "X-Amz-Date": now,
            "X-Amz-Content-SHA256": content,
            "Authorization": f"{credential}, SignedHeaders={listed}, Signature={signature}",
        }
        if self.keys[2]:
            made["X-Amz-Security-Token"] = self.keys[2]
        return made

    def _key_of(self, day: str) -> bytes:
        if day != self._day:
            key = f"AWS4{self.keys[1]}".encode()
            for part in (day, self.region, self.service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day, self._key = day, key
        return self._key
