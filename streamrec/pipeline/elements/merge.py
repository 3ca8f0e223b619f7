"""Merges elements of several chunks, in any order. Frames stay Frames: short records are copied once, long ones not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.pipeline.elements.columns import Columns, map_nests, same_nest
from streamrec.pipeline.elements.positions import Numbers
from streamrec.tfrecord import Frames, Scattered, are_long, as_spans


def merge_windows(parts: Sequence[Any], order: Numbers) -> Any:
    """Merges elements of several windows; `order` has each one's index among the elements of all windows, back to back.

    Frames stay Frames, arrays of one dtype and shape an array, Columns of one structure Columns; others become a list.
    """
    first = parts[0]
    if all(isinstance(part, Frames) for part in parts):
        return gather_frames(parts, order)
    if all(isinstance(part, Columns) and same_nest(part.nest, first.nest) for part in parts):
        return Columns(map_nests(lambda columns: merge_windows(columns, order), [part.nest for part in parts]))
    if all(isinstance(part, np.ndarray) and alike(part, first) for part in parts):
        return np.concatenate(parts)[order]
    elements = [element for part in parts for element in part]
    return [elements[index] for index in order.tolist()]


def in_turn(inputs: Sequence[Sequence[Any]], block: int) -> Any:
    """Merges elements of several inputs, each in windows, `block` of each in turn; the last turn may be shorter."""
    windows = [window for one in inputs for window in one]
    if all(isinstance(window, Frames) for window in windows):
        if are_long(windows):
            return Scattered.in_turn([[window.trim() for window in one] for one in inputs], block)
        buffer, spans = kernels.interleave([[(part.buffer, part.spans) for part in one] for one in inputs], block)
        return Frames(buffer, as_spans(spans))
    sizes = np.array([sum(map(len, one)) for one in inputs], np.int64)
    turns, within = np.divmod(np.arange(sizes.sum()), block)
    rounds, numbers = np.divmod(turns, len(inputs))
    order = (np.cumsum(sizes) - sizes)[numbers] + rounds * block + within
    return merge_windows(windows, order)


def gather_frames(parts: Sequence[Frames], order: Numbers) -> Frames:
    if are_long(parts):
        return Scattered.joining([part.trim() for part in parts]).take(order)
    sources = np.repeat(np.arange(len(parts)), [len(part) for part in parts])[order]
    spans = np.concatenate([part.spans for part in parts])[order]
    buffer, packed = kernels.gather([part.buffer for part in parts], sources, spans)
    return Frames(buffer, as_spans(packed))


def alike(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Whether the rows of two arrays have one dtype and shape."""
    return one.dtype == other.dtype and one.shape[1:] == other.shape[1:]
