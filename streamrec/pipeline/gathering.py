"""Gathering: records picked from many blocks, in their final order, become one Frames by one kernel call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.tfrecord import Frames

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["CHUNK_BYTES", "Gathering"]

CHUNK_BYTES = 4 << 20
"""About how much a gathered chunk holds at the most: much above this it would leave the caches."""

WHOLE_BLOCK_BYTES = 256 << 10
"""A single stretch of one block goes without a copy from here on; shorter ones wait for company."""


class Gathering:
    """Records picked from many blocks, in their final order, to become one Frames."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._picked: list[Frames] = []
        self._buffers: list[Buffer] = []
        self._sources: list[npt.NDArray[np.int64]] = []
        self._spans: list[npt.NDArray[np.int64]] = []

    @property
    def whole_block(self) -> bool:
        """Whether this is one stretch of one block so far, large enough to go without a copy."""
        return len(self._picked) == 1 and len(self._buffers) == 1 and self.nbytes >= WHOLE_BLOCK_BYTES

    def add(self, windows: Sequence[Frames]) -> None:
        """Adds stretches in order."""
        for window in windows:
            self._picked.append(window)
            self._add(np.full(len(window), self._number(window), np.int64), window.spans)

    def add_rounds(self, lanes: Sequence[Sequence[Frames]], rounds: int, block: int) -> None:
        """Adds `rounds` rounds of `block` records from each lane in turn."""
        windows = [window for lane in lanes for window in lane]
        lengths = [len(window.spans) for window in windows]
        sources = np.repeat(np.array([self._number(window) for window in windows], np.int64), lengths)
        spans = np.concatenate([window.spans for window in windows])
        shape = (len(lanes), rounds, block)
        self._add(
            sources.reshape(shape).swapaxes(0, 1).ravel(),
            spans.reshape(*shape, 2).swapaxes(0, 1).reshape(-1, 2),
        )

    def frames(self) -> Frames | None:
        """What was gathered; None for nothing. One stretch of one block comes as it is, without a copy."""
        if not self._spans:
            return None
        if len(self._picked) == 1 and len(self._spans) == 1:
            return self._picked[0]
        buffer, spans = kernels.gather(self._buffers, np.concatenate(self._sources), np.concatenate(self._spans))
        return Frames(buffer, np.frombuffer(spans, np.int64).reshape(-1, 2))

    def _number(self, window: Frames) -> int:
        self._buffers.append(window.buffer)
        return len(self._buffers) - 1

    def _add(self, sources: npt.NDArray[np.int64], spans: npt.NDArray[np.int64]) -> None:
        self._sources.append(sources)
        self._spans.append(spans)
        self.nbytes += int((spans[:, 1] - spans[:, 0]).sum()) + len(spans)
