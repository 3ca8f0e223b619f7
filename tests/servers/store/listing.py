"""Listing: which files of a directory are objects, and one page of their names.

A bucket is a directory, an object a regular file below it, its key the path with "/". Names come in
the order of their UTF-8 bytes, as S3 and Google Cloud Storage have it (which is the order of their
code points).
"""

import base64
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_PAST = "\U0010ffff"  # sorts after every key below a common prefix


@dataclass(frozen=True)
class Found:
    """An object: its key, its size in bytes, and when it was written, in nanoseconds of the
    epoch.
    """

    key: str
    size: int
    written: int

    @property
    def time(self) -> str:
        """When it was written, as listings say it."""
        return datetime.fromtimestamp(self.written // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


@dataclass(frozen=True)
class Page:
    """A page of a listing; `token` is where the next page begins, or "" after the last."""

    found: tuple[Found, ...]
    prefixes: tuple[str, ...]
    token: str


def locate(root: Path, bucket: str, key: str) -> Path | None:
    """The file for a key, or None for a key that cannot be a file (empty segments, "..")."""
    steps = [bucket, *key.split("/")]
    if any(step in ("", ".", "..") or "\0" in step or os.sep in step for step in steps):
        return None
    return root.joinpath(*steps)


def objects(bucket: Path, prefix: str) -> list[Found]:
    """The objects whose key begins with `prefix`, sorted; only directories that can hold one are
    read.
    """
    folder = prefix.rpartition("/")[0]
    start = locate(bucket.parent, bucket.name, folder) if folder else bucket
    if start is None or not start.is_dir():
        return []
    base = f"{folder}/" if folder else ""
    return sorted(
        (item for item in _walk(start, base) if item.key.startswith(prefix)),
        key=lambda item: item.key,
    )


def _walk(folder: Path, base: str) -> Iterator[Found]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _walk(Path(entry.path), f"{base}{entry.name}/")
            elif entry.is_file():
                stat = entry.stat()
                yield Found(base + entry.name, stat.st_size, stat.st_mtime_ns)


def page(items: Iterable[Found], prefix: str, delimiter: str, token: str, limit: int) -> Page:
    """The first `limit` names after the token's; names that continue after a delimiter are folded
    into one prefix.

    Args:
        items: Objects, sorted by key.
        prefix: What all keys begin with.
        delimiter: Where names are folded; "" folds none.
        token: That of the page before; "" begins at the first.
        limit: Names and folded prefixes together, at least 1.

    Raises:
        ValueError: The token is none of ours.
    """
    found: list[Found] = []
    prefixes: list[str] = []
    last = after = base64.urlsafe_b64decode(token.encode()).decode()
    for item in items:
        if item.key <= after or (prefixes and item.key.startswith(prefixes[-1])):
            continue
        if len(found) + len(prefixes) == limit:
            return Page(
                tuple(found), tuple(prefixes), base64.urlsafe_b64encode(last.encode()).decode()
            )
        folded = _fold(item.key, prefix, delimiter)
        if folded:
            prefixes.append(folded)
            last = folded + _PAST
        else:
            found.append(item)
            last = item.key
    return Page(tuple(found), tuple(prefixes), "")


def _fold(key: str, prefix: str, delimiter: str) -> str:
    end = key.find(delimiter, len(prefix)) if delimiter else -1
    return key[: end + len(delimiter)] if end >= 0 else ""
