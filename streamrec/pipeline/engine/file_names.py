"""Many file names in few bytes: for people, and for telling whether a saved state is of the same ones.

A state holds how many names there are, a digest of them all, and a sketch: six bits of a digest of each name, or of
each stretch of them where they are very many. So it says which name is the first that differs, without holding any.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import blake2b
from itertools import zip_longest
from typing import Final

__all__ = ["first_difference", "sketch", "told"]

from streamrec.display import mask_name

FEW: Final = 4
"""So many names are told one by one."""

MOST: Final = 1 << 14
"""Characters of a sketch."""


def told(names: Sequence[str]) -> str:
    """Names for people, and their digest where they are not all told.

    >>> told(["a", "b"]), told([f"x-{number}" for number in range(9000)])
    ("['a', 'b']", "['x-0', 'x-1', 'x-2', ... 9,000 names, digest 2a0f9fca1862d1e2]")
    """
    few = len(names) <= FEW
    first = [mask_name(name) for name in names[: FEW if few else FEW - 1]]
    names = identities(names)
    if few and first == names:
        return repr(first)
    digest = blake2b("\\0".join(names).encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return f"[{', '.join(map(repr, first))}, {'' if few else '... '}{len(names):,} names, digest {digest}]"


def sketch(names: Sequence[str]) -> str:
    """A character for each name, or for each stretch of equal length."""
    return "".join(map(character, stretches(identities(names))))


def identities(names: Sequence[str]) -> list[str]:
    """The names without passwords and tokens, so that a new one makes no other state. Only digests are kept."""
    return [mask_name(name, unknown=False) for name in names]


def stretches(names: Sequence[str]) -> list[Sequence[str]]:
    size = -(-len(names) // MOST) or 1
    return [names[first : first + size] for first in range(0, len(names), size)]


def character(names: Sequence[str]) -> str:
    digest = blake2b("\\0".join(names).encode(errors="surrogateescape"), digest_size=3).digest()
    return b64encode(digest)[:1].decode()


def first_difference(saved: str, names: Sequence[str]) -> str:
    """Where names begin to differ from those of which a sketch was saved, for a message.

    >>> first_difference(sketch(["a", "b", "c"]), ["a", "x", "c"])
    "the first that differs is number 1, 'x'"
    """
    groups = stretches(identities(names))
    for index, (was, group) in enumerate(zip_longest(saved, groups)):
        if group is None:
            return f"there are {len(names):,} now, which is fewer"
        if was is None:
            return f"number {index * len(groups[0]):,}, {mask_name(group[0])!r}, is new"
        if was != character(group):
            first = index * len(groups[0])
            which = f"number {first:,}, {mask_name(group[0])!r}" if len(group) == 1 else f"among numbers {first:,} to "
            return f"the first that differs is {which}" + ("" if len(group) == 1 else f"{first + len(group) - 1:,}")
    return "some of them differ"
