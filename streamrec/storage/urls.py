"""URLs of objects: chains, buckets and keys, hidden names, and globs. Pure, except for `~` in local
paths.

A chain names a filesystem over another one: `zip://dir/x.tfrecord::s3://bucket/c.zip`. Its links go
from the outside in. The outermost link that has a path names the shard. Caches have no path of
their own: in `simplecache::s3://bucket/x.tfrecord` the path is that of the cached object. A URL
that begins with a protocol of one of our backends is not a chain: `s3://bucket/a::b` is a key.

Keys are used as written, as in fsspec: s3:// and gs:// URLs are not percent-decoded.

Globs:
- `*` and `?` stay within a directory, `**` does not. `[ab]`, `[a-c]` and `[!ab]` are sets; none of
  them holds `/`.
- `[*]`, `[?]` and `[[]` stand for these characters themselves, as `glob.escape` writes them.
- In a chain (`zip://train-*::s3://bucket/c.zip`) the URL that has the path is the pattern.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from streamrec.display import join_names
from streamrec.errors import StorageError
from streamrec.lazy import lazy_pattern
from streamrec.store_kinds import MISNOMERS, kind_of_protocol

CACHES: Final = frozenset({"simplecache", "filecache", "blockcache", "cached"})
"""Filesystems whose paths are those of what they cache."""

LOCAL_SCHEME: Final = re.compile(r"\A(?:file|local)://(?:localhost(?=/))?", re.IGNORECASE)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PROTOCOL: Final = lazy_pattern(r"([A-Za-z][A-Za-z0-9+.-]*)(://)?")


class UrlChain(NamedTuple):
    """A URL split into the links before the path, the link that has the path, and the links that
    contain it.

    `before` has a `::` after each link, `after` has one before each. `url` is a URL of its own; all
    of it if it is not a chain.
    """

    before: str
    url: str
    after: str

    @property
    def is_chain(self) -> bool:
        return bool(self.before or self.after)

    @property
    def protocols(self) -> list[str]:
        """The protocols of all links, from the outside in; a plain path is a "file"."""
        links = f"{self.before}{self.url}{self.after}".split("::") if self.is_chain else [self.url]
        return [_protocol(link, link != links[-1]) for link in links]


def split_chain(url: str) -> UrlChain:
    """Splits a URL at the link that has the path.

    >>> split_chain("filecache://::zip://::s3://bucket/c.zip")
    UrlChain(before='filecache://::', url='zip://', after='::s3://bucket/c.zip')
    >>> split_chain("zip://dir/x::s3://bucket/c.zip")
    UrlChain(before='', url='zip://dir/x', after='::s3://bucket/c.zip')
    >>> split_chain("simplecache::s3://bucket/x")
    UrlChain(before='simplecache::', url='s3://bucket/x', after='')
    >>> split_chain("s3://bucket/a::b").is_chain, split_chain("/data/a::b").is_chain
    (False, False)
    """
    links = url.split("::")
    if len(links) == 1 or not _links(links):
        return UrlChain("", url, "")
    number = next((number for number, link in enumerate(links) if _has_path(link)), len(links) - 1)
    before = links[:number]
    after = links[number + 1 :]
    return UrlChain(
        "".join(f"{link}::" for link in before),
        links[number],
        "".join(f"::{link}" for link in after),
    )


def is_url(name: str) -> bool:
    """Whether a name begins with a protocol; a later `://` belongs to the path.

    >>> is_url("s3://b/k"), is_url("/data/http://x")
    (True, False)
    """
    return _SCHEME.match(name) is not None


def protocol_of(url: str) -> str:
    """Returns the protocol of a URL, or of the outermost link of a chain; "file" for a plain path.

    >>> protocol_of("s3://b/k"), protocol_of("/data/x"), protocol_of("C:/x"), protocol_of("simplecache::s3://b/k")
    ('s3', 'file', 'file', 'simplecache')
    """
    if "::" in url:
        return split_chain(url).protocols[0]
    return url.partition("://")[0].lower() if is_url(url) else "file"


def _links(parts: list[str]) -> bool:
    """Whether the parts of a URL between `::` are links of a chain, and not one name that has `::`
    in it.
    """
    first = _PROTOCOL.match(parts[0])
    if (
        first is None
        or kind_of_protocol(first[1].lower()).module
        or (not first[2] and first[0] != parts[0])
    ):
        return False
    import fsspec

    return (
        bool(first[2])
        or first[1] in fsspec.available_protocols()
        or any("://" in part for part in parts)
    )


def _protocol(link: str, bare: bool) -> str:
    """Returns a link's protocol; a bare word is a protocol, except in the last link, where it is a
    path.
    """
    return link.partition("://")[0].lower() if is_url(link) or bare else "file"


def _has_path(link: str) -> bool:
    scheme, colon, path = link.partition("://")
    return bool(path or (colon and scheme not in CACHES))


def suggest_scheme(scheme: str, known: Iterable[str]) -> str:
    """The end of a message about a scheme that is not known: what to write in its place.

    A name of three letters resembles too many others, so only one wrong letter is a slip.

    >>> suggest_scheme("gss", ["s3", "gs", "gist"]), suggest_scheme("azure", ["s3", "gist"])
    (": did you mean 'gs'?", ': write az://CONTAINER/NAME')
    >>> suggest_scheme("minio", ["s3"])
    ": write s3://BUCKET/NAME with storage_options={'endpoint_url': ...} (-o endpoint_url=...), as this store speaks S3's protocol"
    >>> suggest_scheme("xyz", ["s3", "gist"])
    "; known are s3, gist; a store that speaks S3's protocol is s3:// with endpoint_url"
    """  # noqa: E501
    if scheme in MISNOMERS:
        return f": write {MISNOMERS[scheme]}"
    names = list(dict.fromkeys(known))
    near = next((name for name in names if is_slip(scheme, name)), None)
    if near is not None:
        return f": did you mean {near!r}?"
    return (
        f"; known are {join_names(names, 200)}; a store that speaks S3's protocol is s3:// with "
        "endpoint_url"
    )


def is_slip(written: str, meant: str) -> bool:
    """Whether one letter after the first one is wrong, missing, too much, or in its neighbour's
    place.

    >>> is_slip("s4", "s3"), is_slip("htp", "http"), is_slip("gsc", "gcs"), is_slip("cos", "tos")
    (True, True, True, False)
    """
    if written[:1] != meant[:1]:
        return False
    same = 0
    while same < min(len(written), len(meant)) and written[same] == meant[same]:
        same += 1
    rest = written[same:]
    other = meant[same:]
    swapped = rest[:2] == other[1::-1] and rest[2:] == other[2:]
    return rest[1:] == other[1:] or rest[1:] == other or rest == other[1:] or swapped


def local_path(url: str) -> Path:
    """Returns the path of a plain path or a file:// or local:// URL; expands a leading `~`.

    Everything after the scheme is the path, byte for byte, without decoding.

    >>> str(local_path("file:///data/a%20b#1?")), str(local_path("file://localhost/data/a"))
    ('/data/a%20b#1?', '/data/a')
    """
    return Path(local_name(url))


def local_name(url: str) -> str:
    """Returns the same as a string, which is not normalized."""
    return os.path.expanduser(LOCAL_SCHEME.sub("", url))


_HIDDEN: Final = lazy_pattern(
    r"\.(.*)\.streamrec-(?:([0-9a-f]{8}|new|old|set|lock)-)?([0-9a-f]{16})", re.DOTALL
)


def split_prefix(url: str) -> tuple[str, str, str]:
    """Splits a URL into scheme, bucket and key prefix, which may be empty.

    >>> split_prefix("s3://bucket/train-0")
    ('s3', 'bucket', 'train-0')
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise StorageError(f"this URL names no bucket: write {scheme}://bucket/key", url)
    return scheme, bucket, key


def split_object(url: str) -> tuple[str, str]:
    """Splits the URL of an object into bucket and key; a URL without a key is an error."""
    scheme, bucket, key = split_prefix(url)
    if not key:
        raise StorageError(
            f"this URL names a bucket where an object is expected: write {scheme}://{bucket}/key, "
            "or "
            f"{scheme}://{bucket}/*.tfrecord* for the shards in it",
            url,
        )
    return bucket, key


def directory_advice(url: str) -> str:
    """Returns the message for a directory's URL, with the glob to write instead.

    >>> directory_advice("zip://dir/::s3://b/c.zip")
    'this is a directory: write zip://dir/*.tfrecord*::s3://b/c.zip for the shards in it'
    """
    before, name, after = split_chain(url)
    return (
        f"this is a directory: write {before}{name.rstrip('/')}/*.tfrecord*{after} for the shards "
        "in it"
    )


def temporary_name(path: str) -> str:
    """Returns a unique name in the same directory that no listing shows."""
    return hidden_name(path, "", secrets.token_hex(8))


Kind = Literal["", "new-", "old-", "set-", "lock-"]


def hidden_name(path: str, kind: Kind = "", number: str = "0" * 16) -> str:
    """Returns a name next to an object's that no listing shows.

    Its kind is "new-" for a replacement, "old-" for replaced content, "set-" for a journal, "lock-"
    for a directory's lock, "" for a temporary copy. The number, 16 hexadecimal digits, is unique if
    several writers must not use the same name.

    >>> hidden_name("s3://b/dir/shard", "old-", "0123456789abcdef")
    's3://b/dir/.shard.streamrec-old-0123456789abcdef'
    """
    before, url, after = split_chain(path)
    directory, slash, name = url.rpartition("/")
    return f"{before}{directory}{slash}{temporary_prefix(name, writer=kind)}{number}{after}"


def secured_object(path: str) -> str | None:
    """Returns the URL of the object whose old content has this name; None for any other name.

    >>> secured_object("dir/.shard.streamrec-old-0123456789abcdef"), secured_object("dir/shard")
    ('dir/shard', None)
    """
    return _final_name(path, "old")


def staged_object(path: str) -> str | None:
    """Returns the URL of the object whose new content has this name until it is in place; None for
    any other name.

    >>> staged_object(hidden_name("dir/shard", "new-")), staged_object(hidden_name("dir/shard"))
    ('dir/shard', 'dir/shard')
    """
    return _final_name(path, "new") or _final_name(path, None)


def is_journal(path: str) -> bool:
    """Whether a path is the journal of a replacement.

    >>> is_journal("d/.streamrec.streamrec-set-0123456789abcdef"), is_journal("d/shard")
    (True, False)
    """
    return _final_name(path, "set") is not None


def is_unfinished_copy(path: str) -> bool:
    """Whether a path is a temporary copy of a secured object, or of a journal.

    >>> is_unfinished_copy(temporary_name(hidden_name("d/shard", "old-"))), is_unfinished_copy("d/.x")
    (True, False)
    """  # noqa: E501
    match = _HIDDEN.fullmatch(path.rpartition("/")[2])
    inner = match and _HIDDEN.fullmatch(match[1])
    return inner is not None and inner[2] in ("old", "set")


def _final_name(path: str, kind: str | None) -> str | None:
    directory, slash, name = path.rpartition("/")
    match = _HIDDEN.fullmatch(name)
    return f"{directory}{slash}{match[1]}" if match is not None and match[2] == kind else None


def describe_leftover(path: str) -> str | None:
    """Says what happens to an object that a killed writer left; None for other names, and for
    secured content and journals.

    >>> describe_leftover("dir/.shard.streamrec-new-0000000000000000"), describe_leftover("dir/shard")
    ('the next run that replaces dir/shard removes it', None)
    """  # noqa: E501
    directory, slash, name = path.rpartition("/")
    match = _HIDDEN.fullmatch(name)
    if match is None or match[2] in ("old", "set"):
        return None
    if match[2] == "lock":
        return "a lock: its writer removes it, or the next one takes it over"
    final, kind, number = match.groups()
    while inner := _HIDDEN.fullmatch(final):  # a temporary file of a staged object
        final = inner[1]
    if kind not in (None, "new"):
        return f"the next run that writes {directory}{slash}{final} on the same machine removes it"
    if number.strip("0"):
        return "no run removes it: remove it when no writer is at work"
    return f"the next run that replaces {directory}{slash}{final} removes it"


def temporary_prefix(name: str, most: int = 255, writer: str = "") -> str:
    """Returns the prefix of the temporary names for a final name; 16 characters follow it.

    The end of a name that would be longer than `most` bytes is replaced by a digest of the whole.
    `writer`, a few characters, identifies the writer.

    >>> temporary_prefix("shard"), len(temporary_prefix("x" * 255)) + 16
    ('.shard.streamrec-', 255)
    """
    ending = f".streamrec-{writer}"
    room = most - len(f".{ending}") - 16
    data = os.fsencode(name)
    if len(data) > room:
        digest = hashlib.blake2b(data, digest_size=8).hexdigest()
        name = data[: room - len(digest)].decode(errors="ignore") + digest
    return f".{name}{ending}"


def is_temporary(path: str) -> bool:
    """Whether a path is a `hidden_name`: an upload in progress, or one whose writer was killed.

    >>> is_temporary(temporary_name("dir/shard")), is_temporary("dir/shard")
    (True, False)
    """
    return _HIDDEN.fullmatch(path.rpartition("/")[2]) is not None


MAGIC: Final = lazy_pattern(r"[*?[]")

_TOKEN: Final = lazy_pattern(r"(?<![^/])\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]/]*\]|.", re.DOTALL)
_WILDCARDS: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class Glob:
    """A pattern over whole URLs. All matches begin with `prefix`: the pattern before its first
    wildcard, in its chain.

    Examples:
        >>> glob = Glob("s3://b/*/x-?.rec")
        >>> glob.matches("s3://b/d/x-1.rec"), glob.enters("s3://b/d/"), glob.enters("s3://b/d/e/")
        (True, True, False)
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._before, self._url, self._after = split_chain(pattern)
        self.prefix = self._before + MAGIC.split(self._url, maxsplit=1)[0] + self._after
        self._whole = _compile(self._url)
        directories = self._url.split("/")[:-1]
        self._deep = "**" in self._url
        level = next(
            (level for level, name in enumerate(directories) if "**" in name), len(directories)
        )
        self._directories = [_compile(name) for name in directories[:level]]

    def matches(self, url: str) -> bool:
        """Whether the pattern stands for this URL."""
        return self._whole.fullmatch(self._inner(url)) is not None

    def wants(self, url: str) -> bool:
        """Whether a listing reports an object: it matches, or its name is the pattern itself."""
        return url == self.pattern or self.matches(url)

    def enters(self, directory: str) -> bool:
        """Whether a directory, whose URL ends with a slash, can contain an object that `wants`
        accepts.
        """
        inner = self._inner(directory)
        names = inner.split("/")[:-1]
        fits = all(
            regex.fullmatch(name) for regex, name in zip(self._directories, names, strict=False)
        )
        return (
            fits and (self._deep or len(names) <= len(self._directories))
        ) or self._url.startswith(inner)

    def _inner(self, url: str) -> str:
        """Returns a URL without the other links of its chain."""
        return url.removeprefix(self._before).removesuffix(self._after)


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile("".join(map(_expression, _TOKEN.findall(pattern))), re.DOTALL)


def _expression(token: str) -> str:
    """Returns a regular expression for a wildcard, a set or a character."""
    if token in _WILDCARDS:
        return _WILDCARDS[token]
    if len(token) == 1:
        return re.escape(token)
    members = f"[!{token[2:]}" if token[1] == "^" else token
    return (
        "(?!/)" + fnmatch.translate(members)[4:-3]
    )  # without the "(?s:" and the end around the set
