"""matching_files: the names that patterns match, for code that is not async."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fsspec import AbstractFileSystem

from streamrec import bridge
from streamrec.errors import NotFoundError
from streamrec.shards.listing.listing import find_shards
from streamrec.shards.listing.patterns import Filenames, listed
from streamrec.storage import RetryPolicy, Storages, located

__all__ = ["matching_files"]


def matching_files(
    pattern: Filenames,
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: AbstractFileSystem | None = None,
    retry: RetryPolicy | None = None,
) -> list[str]:
    """The names that patterns match, in their order, each one's sorted; none where nothing matches.

    `tf.io.matching_files`, on any store, for files: directories are left out. `Dataset.list_files` gives the same names
    as a Dataset, and each of them is read as it is, whatever characters it has.

    Args:
        pattern: A URL or path with a glob or braces, or a list of them. A name that is no glob is not looked up.
        storage_options, filesystem, retry: As for `TFRecordDataset`.

    Raises:
        PermissionDeniedError: A directory that the pattern can match, or the bucket, must not be listed.
        UnsupportedOperationError: It is a pattern for a web server, which cannot be listed.
        StorageError: The store failed, and retrying did not help.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({"/names/a": b"", "/names/b": b""})
        >>> matching_files("memory://names/*"), matching_files("memory://names/c*")
        (['memory://names/a', 'memory://names/b'], [])
    """
    find = partial(_found, storage_options=storage_options, filesystem=filesystem, retry=retry or RetryPolicy())
    return [path for name in listed(pattern) for path in bridge.run(find, located(name, filesystem))]


async def _found(
    name: str, storage_options: Mapping[str, Any] | None, filesystem: AbstractFileSystem | None, retry: RetryPolicy
) -> list[str]:
    async with Storages(storage_options, filesystem=filesystem, retry=retry) as storages:
        try:
            return await find_shards(storages, name, patterns=True)
        except NotFoundError:
            return []
