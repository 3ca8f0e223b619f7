"""The versions of shards in states, so that a run does not continue with other records. Pure.

A listing has the versions of all shards, and a state has a digest of it. Names, manifests and some
indexes have none. So a run notes the version of each shard from its first answer, and its states
hold a mark (24 bits of a digest) for each shard that is still to be read and whose version is
known: the few that are opened ahead in a first epoch, and all in a later one. Shards that were read
to their end do not matter any more. Open shards have their version in the position itself.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from streamrec.display import warn_once
from streamrec.errors import ObjectChangedError, PositionMismatchError

MARK: Final = 4
"""Characters of a mark."""

UNKNOWN: Final = "-" * MARK
"""The mark of a shard whose version is unknown. Base64 has no such character."""

MOST: Final = 1 << 14
"""Shards whose marks a state holds, the next ones: 64 KiB."""

FEW: Final = 1 << 10
"""Up to this many shards, a state holds their marks even if one digest of all would do, so that an
error can name the shard."""

ALL: Final = "="
"""What a digest of the versions of all shards begins with."""

OLD_STATE: Final = (
    "this state was saved by an earlier release of streamrec, which did not store the versions of "
    "shards: it is not checked whether the shards that are left were written again since. The "
    "states that are saved from now on can be checked"
)


def mark_of(version: str) -> str:
    """The mark of a version.

    >>> mark_of("a"), mark_of("b")
    ('yT9S', 'y1My')
    """
    return b64encode(
        blake2b(version.encode(errors="surrogateescape"), digest_size=3).digest()
    ).decode()


def digest_of(marks: str) -> str:
    return ALL + blake2b(marks.encode(), digest_size=8).hexdigest()


def join_marks(texts: Sequence[str]) -> str:
    """Joins the marks that several workers have of the same shards.

    >>> join_marks(["yT9S", "----y1My"])
    'yT9Sy1My'
    """
    if any(text.startswith(ALL) for text in texts):
        return next(text for text in texts if text.startswith(ALL))
    joined = ShardVersions()
    for text in texts:
        joined.restore(SavedVersions.of({"versions": text}, 0))
    return joined.marks()


class ShardVersions:
    """What a run knows of the versions of its shards, by their numbers."""

    def __init__(self) -> None:
        self._versions: dict[int, str] = {}
        # of shards that were not opened yet, from a state
        self._restored: dict[int, str] = {}
        # Marks by version, made when a state needs them: a digest of each version would cost a
        # short shard 2 us of its 40.
        self._made: dict[str, str] = {}
        # the results of `marks` and `of_all`, which every state needs
        self._last: tuple[int, str] | None = None
        self._whole: tuple[int, str] | None = None

    def __len__(self) -> int:
        """How many are known."""
        return len(self._versions.keys() | self._restored.keys())

    def note(self, shard: int, version: str | None) -> None:
        """Notes the version of an opened shard."""
        if version is not None and self._versions.get(shard) != version:
            self._versions[shard] = version
            self._last = self._whole = None

    def get(self, shard: int) -> str | None:
        """The version of a shard that this run has opened."""
        return self._versions.get(shard)

    def marks(self, first: int = 0) -> str:
        """The marks of the shards from `first` on, as a state holds them.

        >>> versions = ShardVersions()
        >>> versions.note(1, "a")
        >>> versions.marks(), versions.marks(1), versions.marks(2)
        ('----yT9S', 'yT9S', '')
        """
        if self._last is None or self._last[0] != first:
            highest = max(max(self._versions, default=-1), max(self._restored, default=-1))
            last = min(highest + 1, first + MOST)
            self._last = first, "".join(map(self._mark, range(first, last)))
        return self._last[1]

    def of_all(self, count: int) -> str:
        """The marks of all of `count` shards; of many, one digest if all are known."""
        if count <= FEW or len(self) < count:
            return self.marks()
        if self._whole is None or self._whole[0] != count:
            self._whole = count, digest_of("".join(map(self._mark, range(count))))
        return self._whole[1]

    def restore(self, saved: SavedVersions) -> None:
        """Takes over the marks of a state for shards that were not opened yet: this run's states
        need them, too.
        """
        for shard, mark in saved.marks.items():
            self._restored.setdefault(shard, mark)
        self._last = self._whole = None

    def _mark(self, shard: int) -> str:
        version = self._versions.get(shard)
        if version is None:
            return self._restored.get(shard, UNKNOWN)
        mark = self._made.get(version)
        if mark is None:
            mark = self._made[version] = mark_of(version)
        return mark


@dataclass(frozen=True, slots=True)
class ComparedVersions:
    """The versions of a run's shards, and those of the state from which it continues.

    `about` gives the name of a shard, and whether a listing had its version.
    """

    versions: ShardVersions
    saved: SavedVersions
    about: Callable[[int], tuple[str, bool]]

    def opened(self, shard: int, version: str | None) -> None:
        """Compares an opened shard with the state, and notes its version."""
        if self.saved.has_something_to_check:
            path, listed = self.about(shard)
            self.saved.check(shard, version, path, listed=listed)
        self.versions.note(shard, version)


class SavedVersions:
    """The marks in a state, by shard, with which a run compares the shards that it opens.

    `is_old` says that the state has none because an earlier release saved it; `digest` is that of
    all marks. `has_something_to_check` is whether an opened shard may differ from the state.
    """

    def __init__(
        self, marks: Mapping[int, str], is_old: bool = False, digest: str | None = None
    ) -> None:
        self.marks = marks
        self.is_old = is_old
        self.digest = digest
        # Without a state, no shard differs from it.
        self.has_something_to_check = bool(marks) or is_old

    @classmethod
    def of(cls, state: Mapping[str, Any] | None, first: int) -> SavedVersions:
        """Those of a source's state, whose first mark is that of the shard `first`."""
        if state is None:
            return cls({})
        text = state.get("versions")
        if text is None:
            return cls({}, is_old=True)
        if text.startswith(ALL):
            return cls({}, digest=text)
        parts = (text[at : at + MARK] for at in range(0, len(text), MARK))
        return cls({first + n: mark for n, mark in enumerate(parts) if mark != UNKNOWN})

    def differs(self, shard: int, version: str | None) -> bool:
        mark = self.marks.get(shard)
        return mark is not None and version is not None and mark != mark_of(version)

    def check(self, shard: int, version: str | None, path: str, *, listed: bool = False) -> None:
        """Compares an opened shard, whose version a listing may have had; an ObjectChangedError if
        it was written since the state was saved.
        """
        if self.differs(shard, version):
            raise ObjectChangedError(
                "this shard was written after the state was saved, so the run cannot continue with "
                "it: resume with the same shards, or start over without the state",
                path,
            )
        if self.is_old and version is not None and not listed:
            warn_once(OLD_STATE)

    def check_all(self, versions: Sequence[str | None], paths: Sequence[str]) -> None:
        """Compares the known versions of all shards before a run continues; a PositionMismatchError
        names the first that differs.
        """
        for shard, version in enumerate(versions):
            if self.differs(shard, version):
                raise PositionMismatchError(
                    f"this state was saved when {paths[shard]} had another version: it was written "
                    "since; resume with the same shards, or start over without the state"
                )
        known = [version for version in versions if version is not None]
        is_comparable = self.digest is not None and len(known) == len(versions)
        if is_comparable and digest_of("".join(map(mark_of, known))) != self.digest:
            raise PositionMismatchError(
                f"this state was saved when some of these {len(known):,} shards had other "
                "versions: they were written since; resume with the same shards, or start over "
                "without the state"
            )
        if self.is_old and any(version is not None for version in versions):
            warn_once(OLD_STATE)
