"""Loader: batches as tensors on a device, without worker processes.

Rules:
- On the CPU a tensor shares its memory with the column, where that may be written to.
- On a CUDA device batches go through pinned memory and a side stream (`staging.py`), some of them ahead of their turn.
- Nothing is asked of CUDA before the first iteration, so that a Loader may be made before a fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from streamrec import Dataset
from streamrec.arguments import integer
from streamrec.pipeline.engine.ranks import rank_here
from streamrec.pipeline.loading import Epochs, converted
from streamrec.torch.staging import CudaStream, Moving, Staging
from streamrec.torch.tensors import to_tensor, to_tensors

__all__ = ["Loader"]


class Loader:
    """A Dataset's elements as tensors on a device: iterate it, once for each epoch.

    The pipeline makes the batches, in threads of this process; no worker processes are needed, and none of their
    memory, start-up time and copying.

    Args:
        dataset: What is read. Where there are several ranks, it must hold `distribute`.
        device: Where the tensors lie: "cpu", "cuda", "cuda:1", a `torch.device`.
        prefetch: How many elements are moved to the device ahead of the one that is worked on. That many batches and
            one more lie in its memory, and as many in pinned memory. On the CPU nothing is moved.

    Shapes and dtypes are those of the columns; `to_tensors` says what else becomes of an element.

    Raises:
        ValueError: There is no such device here.

    Examples:
        >>> loader = Loader(Dataset.range(4).batch(2))
        >>> for batch in loader:
        ...     print(batch)
        tensor([0, 1])
        tensor([2, 3])

        It is saved after any element, and goes on from there:

        >>> batches = iter(loader)
        >>> _ = next(batches)
        >>> again = Loader(Dataset.range(4).batch(2))
        >>> again.load_state_dict(loader.state_dict())
        >>> list(again)
        [tensor([2, 3])]
    """

    def __init__(self, dataset: Dataset[Any], *, device: Any = "cpu", prefetch: int = 2) -> None:
        self.device = torch.device(device)
        check_device(self.device)
        self._slots = integer("prefetch", prefetch, 0) + 1
        self._staging: Staging | None = None
        ahead = 0 if self.device.type == "cpu" else prefetch
        self._epochs: Epochs[Any] = Epochs(dataset, self._moved, self._delivered, ahead, rank_here)

    def __iter__(self) -> Iterator[Any]:
        """The next epoch; or the rest of one, once, where `load_state_dict` said.

        Leaving the loop ends the reading. An error of the data comes behind all batches before it. An iterator that is
        never asked for a batch does not count as one.

        Raises:
            ValueError: Other ranks iterate beside this one, and the data is not dealt to them.
            PositionMismatchError: The state was saved by another pipeline.
        """
        return iter(self._epochs)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration begins, from 0, or goes on with after `load_state_dict`.

        A loop that counts from it trains no epoch twice, however the state was saved:

            for epoch in range(loader.epoch, 3):
                for batch in loader: ...
        """
        return self._epochs.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch; without it, the one behind the last."""
        self._epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where this rank's next element comes from, as JSON; {} where nothing was iterated.

        Behind the end of an epoch that is the first element of the next.
        """
        return self._epochs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where the state was saved; {} for the start.

        Raises:
            PositionMismatchError: It is no state, or not as it was saved.
        """
        self._epochs.load_state_dict(state)

    def _moved(self, element: Any) -> Any:
        if self.device.type == "cpu":
            return to_tensors(element)
        if self.device.type == "cuda":
            if self._staging is None:
                self._staging = Staging(CudaStream(self.device), self._slots)
            return self._staging.move(element)
        return converted(element, lambda array, name: to_tensor(array, name).to(self.device))

    def _delivered(self, element: Any) -> Any:
        if isinstance(element, Moving) and self._staging is not None:
            return self._staging.deliver(element)
        return element


def check_device(device: Any) -> None:
    """Refuses a CUDA device that is not there, without making use of one that is.

    Raises:
        ValueError: It is not.
    """
    if device.type != "cuda":
        return
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise ValueError(f"device={str(device)!r}: torch finds {count} CUDA devices here; device='cpu' works anywhere")
