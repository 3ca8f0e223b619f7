"""URLs of objects, and the temporary names of uploads. Pure.

Keys are taken as they stand, as fsspec does: nothing is percent-decoded in s3:// and gs:// URLs.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from typing import Final

from streamrec.errors import StorageError
from streamrec.storage.backends.chained_urls import split_chain

__all__ = ["directory_advice", "is_temporary", "split_object", "split_prefix", "temporary_name", "temporary_prefix"]

_TEMPORARY: Final = re.compile(r"\..*\.streamrec-([0-9a-f]{8}-)?[0-9a-f]{16}", re.DOTALL)


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
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}{temporary_prefix(name)}{secrets.token_hex(8)}"


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
    """Whether a path is one of `temporary_name`: the remains of a killed upload.

    >>> is_temporary(temporary_name("dir/shard")), is_temporary("dir/shard")
    (True, False)
    """
    return _TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None
