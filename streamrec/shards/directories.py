"""What is said of a directory where a shard is expected: the splits in it, and what to write.

Object stores have no directories: there is no object of that name, or an empty one whose name ends
in a slash. So the store is asked only when an object is missing.
"""

from __future__ import annotations

import glob
from typing import Final

from streamrec.errors import NotFoundError, StorageError
from streamrec.shards.numbered_names import find_splits, parse_numbered
from streamrec.storage import Glob, ObjectInfo, Storage, directory_advice, split_chain

LEVELS: Final = ("*", "*/*")
"""Where shards are looked for in a directory of a file system.

That is in it, and then in those in it, as versions of a data set are. A walk through all that is
below might take hours.
"""


async def stat_shard(storage: Storage, path: str) -> ObjectInfo:
    """The size and version of a shard; the error for a directory says what to write instead."""
    try:
        return await storage.stat(path)
    except StorageError as error:
        await refuse_directory(storage, path, error)
        raise


async def refuse_directory(storage: Storage, path: str, error: StorageError) -> None:
    """Raises the error for a directory, with its splits and a pattern for one of them.

    Returns if the error of the path is another one.
    """
    missing = isinstance(error, NotFoundError)
    if error.path != path or not (missing or error.reason == directory_advice(path)):
        return
    before, url, after = split_chain(path)
    directory = before + url.rstrip("/") + "/"
    found: list[str] = []
    try:
        if missing:
            found = [info.path async for info in storage.list(directory + after)]
        for level in LEVELS if not missing else ():
            if not found:
                wanted = Glob(glob.escape(directory) + level + after)
                found = [info.path async for info in storage.list(directory + after, wanted)]
    except StorageError:
        pass  # the store cannot list, or not for this user
    if found or not missing:
        raise type(error)(advice_of_splits(path, found), path) from error


def advice_of_splits(path: str, shards: list[str]) -> str:
    """What to write instead of a directory that holds these objects.

    Examples:
        >>> text = advice_of_splits("d", ["d/x-test-0-of-1", "d/x-train-0-of-1"])
        >>> what, _, advice = text.partition(": ")
        >>> what
        'this is a directory of the splits test (1 shard) and train (1 shard)'
        >>> advice
        'write d/x-test-*-of-1 for one of them'
    """
    numbered = [shard for shard in shards if parse_numbered(shard) is not None]
    splits = find_splits(numbered)
    if not splits.names:
        return directory_advice(path)
    first = parse_numbered(numbered[0])
    pattern = first.pattern if first is not None else path
    if not splits.several:
        return f"this is a directory: write {pattern} for the shards in it"
    return f"this is a directory of the splits {splits}: write {pattern} for one of them"
