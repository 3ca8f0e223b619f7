"""URLs of objects, and the temporary names of uploads. Pure.

Keys are taken as they stand, as fsspec does: nothing is percent-decoded in s3:// and gs:// URLs.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from streamrec.errors import StorageError

__all__ = ["is_temporary", "split_object", "split_prefix", "temporary_name"]

_TEMPORARY: Final = re.compile(r"\..*\.streamrec-([0-9a-f]{8}-)?[0-9a-f]{16}")


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
        raise StorageError(f"this URL names a bucket where an object is wanted: write {scheme}://bucket/key", url)
    return bucket, key


def temporary_name(path: str) -> str:
    """A name in the same directory that nobody else uses and that no listing shows."""
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}.{name}.streamrec-{secrets.token_hex(8)}"


def is_temporary(path: str) -> bool:
    """Whether a path is one of `temporary_name`: the remains of a killed upload.

    >>> is_temporary(temporary_name("dir/shard")), is_temporary("dir/shard")
    (True, False)
    """
    return _TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None
