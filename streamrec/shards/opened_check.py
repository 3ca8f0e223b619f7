"""Compares an opened shard with what a listing, a manifest or an index says of it.

Some gateways name another version (ETag) of an unchanged object in their listings than in their
answers to GET. So where only the versions differ, and size and time of modification agree, the
listing decides: it is asked again, and if it still has its own version, the object is unchanged.
"""

from __future__ import annotations

from dataclasses import replace

from streamrec.display import display_name, logger
from streamrec.errors import StorageError
from streamrec.shards.options import Expected
from streamrec.storage import ObjectInfo, Storage

_warned: set[tuple[str, str]] = set()


async def check_opened(storage: Storage, expected: Expected, found: ObjectInfo) -> None:
    """Compares an opened shard with its description; errors as `Expected.check`."""
    if expected.differs_in_version_only(found) and await _is_listed_as(storage, expected, found):
        _warn_once(storage, expected, found)
        expected = replace(expected, version=None)
    expected.check(found)


async def _is_listed_as(storage: Storage, expected: Expected, found: ObjectInfo) -> bool:
    """Whether a new listing has the same version, size and time of the object as the first one."""
    try:
        listed = [info async for info in storage.list(found.path) if info.path == found.path]
    except StorageError:  # without a listing, the versions decide
        return False
    return len(listed) == 1 and Expected.of(listed[0]) == expected


def _warn_once(storage: Storage, expected: Expected, found: ObjectInfo) -> None:
    """Warns once per process, server and bucket."""
    scheme, _, rest = found.path.partition("://")
    key = storage.endpoint, f"{scheme}://{rest.partition('/')[0]}"
    if key in _warned:
        return
    _warned.add(key)
    logger.warning(
        "%s: the listing has version %s of this object, and GET has version %s. Its size and time "
        "of modification agree, and the listing did not change, so it is read; a shard that is "
        "replaced within the second of its listing could go unnoticed. The gateway should name one "
        "version. Other objects of %s are read in the same way without a further warning",
        display_name(found.path),
        expected.version,
        found.version,
        key[1],
    )
