"""What goes when the cache is full, and when it is asked. Pure.

Training reads its data in cycles: a pass that is larger than the cache would, with the usual rule
(the block that was used least recently goes), always remove exactly what it reads next. So a
running job never loses a block, also not to itself: what does not fit is not admitted. Room for a
new data set comes from the data sets that no running job uses, the one first that was used longest
ago.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

RETRY_SECONDS: Final = 30.0
"""After a search that found too little to remove, a process searches no more for this long."""

LOCK_SECONDS: Final = 2.0
"""A fetch that has made no progress for so long is not waited for. Its process may be dead,
suspended, or wait for its own reader."""

SHARE: Final = 0.02
"""The fraction of the limit that one removal frees, so that not each block needs one."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block on the disk: its file's name, and what it counts."""

    name: str
    charge: int


@dataclass(frozen=True, slots=True)
class StoredSet:
    """A data set on the disk.

    Attributes:
        name: Its directory's name.
        used: When a run last began to use it, in seconds since 1970.
        blocks: Its blocks.
    """

    name: str
    used: float
    blocks: Sequence[StoredBlock]


def choose_victims(
    sets: Iterable[StoredSet], in_use: Collection[str], needed: int
) -> list[tuple[str, StoredBlock]]:
    """Returns the blocks to remove, each with its data set, so that `needed` bytes become free.

    They are fewer if that is all that no running job uses.

    >>> old = StoredSet("old", 1.0, [StoredBlock("x", 8)])
    >>> new = StoredSet("new", 2.0, [StoredBlock("x", 8)])
    >>> [name for name, _ in choose_victims([new, old], in_use=[], needed=8)]
    ['old']
    >>> [name for name, _ in choose_victims([new, old], in_use=["old"], needed=16)]
    ['new']
    """
    victims: list[tuple[str, StoredBlock]] = []
    freed = 0
    for stored in sorted(sets, key=lambda stored: (stored.used, stored.name)):
        if stored.name in in_use:
            continue
        for block in stored.blocks:
            if freed >= needed:
                return victims
            victims.append((stored.name, block))
            freed += block.charge
    return victims


def room_to_make(used: int, charge: int, limit: int) -> int:
    """Returns how many bytes to free before a block of this charge is admitted; 0 if it fits.

    >>> room_to_make(90, 10, 100), room_to_make(95, 10, 100), room_to_make(995, 10, 1000)
    (0, 5, 20)
    """
    lacking = used + charge - limit
    return max(lacking, int(limit * SHARE)) if lacking > 0 else 0


def is_expired(touched: float, now: float, patience: float = LOCK_SECONDS) -> bool:
    """Whether the holder of a lock made no progress for too long.

    A clock that was set back makes no lock live longer than its patience, too.

    >>> is_expired(10.0, 11.0), is_expired(10.0, 12.5), is_expired(100.0, 12.5)
    (False, True, True)
    """
    return not -patience <= now - touched <= patience
