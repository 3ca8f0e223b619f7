"""The journal of a Replacement: what it replaces, and whether it is complete.

It is a hidden object in each directory whose objects are replaced, from before the first of them is
touched until the last hidden one is removed. So what a killed process leaves tells whether the
replacement was still under way, and the old objects must be put back, or was complete, and only
hidden objects must be removed. The journal in the `home` directory decides: it is written first,
changes when all objects are in place, and is removed last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streamrec.errors import ManifestError
from streamrec.storage.urls import hidden_name

UNDER_WAY = "under way"
COMPLETE = "complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedObject:
    """One object of a replacement.

    Attributes:
        path: Its URL.
        written: The hidden URL of the new object.
        old: The hidden URL of the old object, if there was one.
        mark: The mark of the new object; see `Held.mark`.
        version: The version of the new object at its hidden URL.
        keeps: Whether the new object stays if the replacement is undone: the old one is gone.
    """

    path: str
    written: str
    old: str
    mark: str | None
    version: str | None
    keeps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What one replacement does.

    Attributes:
        number: The number in the names of its hidden objects.
        home: The URL of the journal that decides.
        state: UNDER_WAY or COMPLETE.
        objects: What it replaces.
    """

    number: str
    home: str
    state: str
    objects: Sequence[ReplacedObject]

    @property
    def directories(self) -> list[str]:
        """The directories of its objects; each has a journal."""
        return sorted({directory_of(each.path) for each in self.objects})

    def to_json(self) -> bytes:
        content = {"streamrec": 1, **asdict(self)}
        return json.dumps(content, indent=1).encode()

    @classmethod
    def parse(cls, path: str, data: bytes) -> Journal:
        """Reads a journal; a ManifestError if it is none."""
        try:
            content: dict[str, Any] = json.loads(data)
            objects = [ReplacedObject(**each) for each in content["objects"]]
            journal = cls(
                number=content["number"],
                home=content["home"],
                state=content["state"],
                objects=objects,
            )
            if journal.state not in (UNDER_WAY, COMPLETE):
                raise ValueError(journal.state)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ManifestError(
                f"{path}: this is not the journal of a replacement ({error}): look at the hidden "
                "objects yourself"
            ) from error
        return journal


def directory_of(path: str) -> str:
    """The directory of an object, with a slash at its end; "" for a plain name."""
    return path[: path.rfind("/") + 1]


def journal_name(directory: str, number: str) -> str:
    """Returns the URL of a replacement's journal in a directory.

    >>> journal_name("s3://b/d/", "0123456789abcdef")
    's3://b/d/.streamrec.streamrec-set-0123456789abcdef'
    """
    return hidden_name(f"{directory}streamrec", "set-", number)
