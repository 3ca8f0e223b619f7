"""Chained URLs of fsspec: a filesystem over another one, `zip://dir/x.tfrecord::s3://bucket/c.zip`. Pure.

The links of a chain stand from the outside in. Most have a path of their own, and the path of the outermost that has
one names the shard. Caches have none: in `simplecache::s3://bucket/x.tfrecord` the path is that of what they cache.

What begins with a protocol of a store that has a backend here is no chain: `s3://bucket/a::b` is a key.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import fsspec

__all__ = ["CACHES", "NATIVE", "Chain", "is_url", "protocol_of", "split_chain"]

NATIVE: Final = frozenset({"s3", "s3a", "gs", "gcs", "http", "https", "file", "local", "memory"})
"""Protocols that have a backend of their own."""

CACHES: Final = frozenset({"simplecache", "filecache", "blockcache", "cached"})
"""Filesystems whose paths are those of what they cache."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PROTOCOL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(://)?")


class Chain(NamedTuple):
    """A URL in three pieces, which joined are the URL.

    Attributes:
        before: Links without a path, each with its `::`.
        url: The link that has the path, as a URL of its own; of what is no chain, all of it.
        after: What it lies in, from its `::` on.
    """

    before: str
    url: str
    after: str

    @property
    def linked(self) -> bool:
        """Whether it is a chain."""
        return bool(self.before or self.after)

    @property
    def protocols(self) -> list[str]:
        """The protocols of all links, from the outside in; a plain path is a "file"."""
        links = f"{self.before}{self.url}{self.after}".split("::") if self.linked else [self.url]
        return [_protocol(link, link != links[-1]) for link in links]


def split_chain(url: str) -> Chain:
    """The pieces of a URL.

    >>> split_chain("filecache://::zip://::s3://bucket/c.zip")
    Chain(before='filecache://::', url='zip://', after='::s3://bucket/c.zip')
    >>> split_chain("zip://dir/x::s3://bucket/c.zip")
    Chain(before='', url='zip://dir/x', after='::s3://bucket/c.zip')
    >>> split_chain("simplecache::s3://bucket/x")
    Chain(before='simplecache::', url='s3://bucket/x', after='')
    >>> split_chain("s3://bucket/a::b").linked, split_chain("/data/a::b").linked
    (False, False)
    """
    links = url.split("::")
    if len(links) == 1 or not _links(links):
        return Chain("", url, "")
    number = next((number for number, link in enumerate(links) if _has_path(link)), len(links) - 1)
    before, after = links[:number], links[number + 1 :]
    return Chain("".join(f"{link}::" for link in before), links[number], "".join(f"::{link}" for link in after))


def is_url(name: str) -> bool:
    """Whether a name begins with a protocol; `://` further on belongs to the path.

    >>> is_url("s3://b/k"), is_url("/data/http://x")
    (True, False)
    """
    return _SCHEME.match(name) is not None


def protocol_of(url: str) -> str:
    """The protocol of a URL, or of the outermost link of a chain; a plain path is a "file".

    >>> protocol_of("s3://b/k"), protocol_of("/data/x"), protocol_of("C:/x"), protocol_of("simplecache::s3://b/k")
    ('s3', 'file', 'file', 'simplecache')
    """
    return split_chain(url).protocols[0]


def _links(parts: list[str]) -> bool:
    """Whether the parts of a URL between `::` are links of a chain, and not one name that has `::` in it."""
    first = _PROTOCOL.match(parts[0])
    if first is None or first[1].lower() in NATIVE or (not first[2] and first[0] != parts[0]):
        return False
    return bool(first[2]) or first[1] in fsspec.available_protocols() or any("://" in part for part in parts)


def _protocol(link: str, bare: bool) -> str:
    """A link's protocol; a bare word is one everywhere but in the last link, where it is a path."""
    return link.partition("://")[0].lower() if is_url(link) or bare else "file"


def _has_path(link: str) -> bool:
    scheme, colon, path = link.partition("://")
    return bool(path or (colon and scheme not in CACHES))
