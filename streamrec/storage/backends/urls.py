"""URLs of objects, and the temporary names of uploads. Pure.

Keys are taken as they stand, as fsspec does: nothing is percent-decoded in s3:// and gs:// URLs.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from typing import Final, Literal

from streamrec.errors import StorageError
from streamrec.storage.backends.chained_urls import split_chain

__all__ = [
    "directory_advice",
    "hidden_name",
    "is_temporary",
    "secured_of",
    "split_object",
    "split_prefix",
    "staged_for",
    "temporary_name",
    "temporary_prefix",
]

_TEMPORARY: Final = re.compile(r"\..*\.streamrec-([0-9a-f]{8}-|new-|old-)?[0-9a-f]{16}", re.DOTALL)
_BESIDE: Final = re.compile(r"\.(.*)\.streamrec-(new|old)-[0-9a-f]{16}", re.DOTALL)


def split_prefix(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and key prefix, which may be empty.

    Raises:
        StorageError: There is no bucket in it.

    >>> split_prefix("s3://bucket/train-0")
    ('s3', 'bucket', 'train-0')
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise StorageError(f"this URL names no bucket: write {scheme}://bucket/key", url)
    return scheme, bucket, key


def split_object(url: str) -> tuple[str, str]:
    """Bucket and key.

    Raises:
        StorageError: One of them is empty.
    """
    scheme, bucket, key = split_prefix(url)
    if not key:
        raise StorageError(
            f"this URL names a bucket where an object is wanted: write {scheme}://{bucket}/key, or "
            f"{scheme}://{bucket}/*.tfrecord* for the shards in it",
            url,
        )
    return bucket, key


def directory_advice(url: str) -> str:
    """What to write in place of a directory's URL.

    >>> directory_advice("zip://dir/::s3://b/c.zip")
    'this is a directory: write zip://dir/*.tfrecord*::s3://b/c.zip for the shards in it'
    """
    before, name, after = split_chain(url)
    return f"this is a directory: write {before}{name.rstrip('/')}/*.tfrecord*{after} for the shards in it"


def temporary_name(path: str) -> str:
    """A name in the same directory that nobody else uses and that no listing shows."""
    return hidden_name(path, "", secrets.token_hex(8))


def hidden_name(path: str, kind: Literal["", "new-", "old-"] = "", number: str = "0" * 16) -> str:
    """A name beside an object's that no listing shows: for what is to replace it, for what it replaced, or for a while.

    Args:
        path: The object's URL.
        kind: What lies there.
        number: 16 hexadecimal digits, where several writers must not meet.

    >>> hidden_name("s3://b/dir/shard", "old-", "0123456789abcdef")
    's3://b/dir/.shard.streamrec-old-0123456789abcdef'
    """
    before, url, after = split_chain(path)
    directory, slash, name = url.rpartition("/")
    return f"{before}{directory}{slash}{temporary_prefix(name, writer=kind)}{number}{after}"


def secured_of(path: str) -> str | None:
    """The URL of the object whose former content has this name; None where it is no such name.

    >>> secured_of("dir/.shard.streamrec-old-0123456789abcdef"), secured_of("dir/shard")
    ('dir/shard', None)
    """
    return _beside(path, "old")


def staged_for(path: str) -> str | None:
    """The URL of the object that is to have this content, likewise."""
    return _beside(path, "new")


def _beside(path: str, kind: str) -> str | None:
    directory, slash, name = path.rpartition("/")
    found = _BESIDE.fullmatch(name)
    return f"{directory}{slash}{found[1]}" if found is not None and found[2] == kind else None


def temporary_prefix(name: str, most: int = 255, writer: str = "") -> str:
    """What temporary names for one final name begin with: 16 characters more, and they are whole.

    Args:
        name: The last segment of the final name.
        most: How many bytes a name may have: of a longer one the end is replaced by a digest of it all.
        writer: Who writes: a few characters; "" where that need not be known.

    Examples:
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
    """Whether a path is one of `hidden_name`: of an upload that is under way, or was killed.

    >>> is_temporary(temporary_name("dir/shard")), is_temporary("dir/shard")
    (True, False)
    """
    return _TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None
