"""Whether the disk is faster than the store, as measured. Pure.

A cache may only help: on a network disk, or one that others keep busy, reading the store again is
faster. Each side's rate is that of one stream, because streams wait next to each other.
"""

from __future__ import annotations

from typing import Final

PROOF_BYTES: Final = 32 << 20
"""Bytes of each side before they are compared."""

MARGIN: Final = 2.0
"""How much faster the store must be: blocks from the disk cost less processor time and no money."""

FAST: Final = 400e6
"""Bytes a second of one stream with which a disk is never too slow: what the kernel has received
ahead makes a store look faster than its network."""

PROBE: Final = 16
"""While the disk is slower, one block of this many is read from it, to measure again."""

MEMORY_BYTES: Final = 256 << 20
"""Older measurements count half after this many bytes."""


class Rate:
    """Bytes a second of one side, over about the last MEMORY_BYTES."""

    def __init__(self) -> None:
        self.nbytes = 0.0
        self._seconds = 0.0

    def record(self, nbytes: int, seconds: float) -> None:
        """Records bytes, and for how long a stream waited for them."""
        self.nbytes += nbytes
        self._seconds += seconds
        if self.nbytes > MEMORY_BYTES:
            self.nbytes /= 2
            self._seconds /= 2

    @property
    def per_second(self) -> float:
        return self.nbytes / max(self._seconds, 1e-9)


class SpeedComparison:
    """Compares the disk with the store.

    >>> speeds = SpeedComparison()
    >>> speeds.store.record(64 << 20, 0.1)
    >>> speeds.disk.record(64 << 20, 1.0)
    >>> [speeds.takes_disk() for _ in range(3)]
    [False, False, False]
    """

    def __init__(self) -> None:
        self.disk = Rate()
        self.store = Rate()
        self._passed = 0

    @property
    def disk_is_slower(self) -> bool:
        if min(self.disk.nbytes, self.store.nbytes) < PROOF_BYTES:
            return False
        rate = self.disk.per_second
        return rate < FAST and rate * MARGIN < self.store.per_second

    def takes_disk(self) -> bool:
        """Whether to read the next block from the disk."""
        if not self.disk_is_slower:
            return True
        self._passed += 1
        return self._passed % PROBE == 0
