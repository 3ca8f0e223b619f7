"""Staging: arrays on their way to a CUDA device, through pinned memory and on a stream of their own.

A copy from usual memory holds up the caller and the device. From pinned (page-locked) memory it goes on beside both.
Pinned memory is dear to get, so it is used again.

Rules:
- A slot holds one batch, a pinned buffer for each of its arrays. It is written to again when the copies from it are
  done, and not before: `event` tells.
- The copies run on a side stream. What was copied belongs to that stream until `hand_over` has the stream that the
  caller computes on wait for it (the host does not wait), and keeps the memory from being given out again before the
  caller's own work is done (`record_stream`).
- `Stream` is the seam: all that needs a device is in `CudaStream`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from streamrec.pipeline.loading import converted
from streamrec.torch.tensors import dtype_of

__all__ = ["CudaStream", "Event", "Moving", "Staging", "Stream"]


class Event(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Whether all work before it is done."""

    def synchronize(self) -> None:
        """Waits until it is."""


class Stream(Protocol):
    """Copies to a device, beside its other work."""

    def pinned(self, nbytes: int) -> Any:
        """Pinned memory: a tensor of bytes."""

    def copy(self, source: Any) -> Any:
        """Begins to copy a pinned tensor; returns the one on the device."""

    def record(self) -> Event:
        """Behind all that was begun."""

    def hand_over(self, tensors: list[Any], event: Event) -> None:
        """Lets the caller's work on the device use what was copied before the event."""


class CudaStream:
    """A side stream of a CUDA device."""

    def __init__(self, device: Any) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device: Any = torch.device("cuda", index)  # also when another one becomes the current one
        cuda: Any = torch.cuda  # its functions have no types
        self._stream = cuda.Stream(self._device)

    def pinned(self, nbytes: int) -> Any:
        """Pinned memory, from torch's own pool, which knows what is being copied from it."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, source: Any) -> Any:
        """The tensor on the device, whose memory is the side stream's."""
        with torch.cuda.stream(self._stream):
            return source.to(self._device, non_blocking=True)

    def record(self) -> Event:
        """Behind all that was begun."""
        event: Event = self._stream.record_event()
        return event

    def hand_over(self, tensors: list[Any], event: Event) -> None:
        """The stream that is current here waits for the event; this thread does not."""
        current: Any = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)


@dataclass(slots=True)
class Slot:
    """Pinned memory for one batch.

    Attributes:
        buffers: Tensors of bytes, one for each array; as large as the largest so far.
        event: Behind the last copies from it; None before the first.
    """

    buffers: list[Any] = field(default_factory=list)
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class Moving:
    """An element whose tensors are on their way.

    Attributes:
        element: The element, with tensors of the device.
        tensors: These tensors.
        event: Behind their copies.
    """

    element: Any
    tensors: list[Any]
    event: Event


class Staging:
    """Moves elements to a device.

    Args:
        stream: Where they are copied.
        slots: For how many batches there may be pinned memory.
    """

    def __init__(self, stream: Stream, slots: int) -> None:
        self._stream = stream
        self._most = slots
        self._slots: deque[Slot] = deque()

    @property
    def pinned_bytes(self) -> int:
        """Bytes of pinned memory."""
        return sum(buffer.numel() for slot in self._slots for buffer in slot.buffers)

    def move(self, element: Any) -> Moving:
        """Begins to move an element; waits only where all slots are being copied from."""
        slot = self._free_slot()
        tensors: list[Any] = []

        def leaf(array: npt.NDArray[Any], name: str) -> Any:
            tensors.append(self._stream.copy(self._staged(slot, len(tensors), array, name)))
            return tensors[-1]

        try:
            moved = converted(element, leaf)
        finally:
            slot.event = self._stream.record()
            self._slots.append(slot)
        return Moving(moved, tensors, slot.event)

    def deliver(self, moving: Moving) -> Any:
        """The element, for work on the device that begins from now on."""
        self._stream.hand_over(moving.tensors, moving.event)
        return moving.element

    def _free_slot(self) -> Slot:
        oldest = self._slots[0].event if self._slots else None
        if oldest is None or (len(self._slots) < self._most and not oldest.query()):
            return Slot()
        oldest.synchronize()
        return self._slots.popleft()

    def _staged(self, slot: Slot, index: int, array: npt.NDArray[Any], name: str) -> Any:
        """The array's bytes in the slot, as a pinned tensor."""
        dtype = dtype_of(array, name)
        if index == len(slot.buffers):
            slot.buffers.append(self._stream.pinned(array.nbytes))
        elif slot.buffers[index].numel() < array.nbytes:
            slot.buffers[index] = self._stream.pinned(array.nbytes)
        buffer = slot.buffers[index][: array.nbytes]
        native = array.dtype.newbyteorder("=")
        np.copyto(buffer.numpy().view(native).reshape(array.shape), array)
        return buffer.view(dtype).view(array.shape)
