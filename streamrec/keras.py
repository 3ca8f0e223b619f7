"""A `Loader` in Keras 3's `model.fit`, on any of its backends, with exact resuming.

    feed = streamrec.keras.FitBatches(streamrec.torch.Loader(dataset))
    model.fit(feed.batches(), steps_per_epoch=100, epochs=3, callbacks=[feed])

Rules:
- Keras takes a loader that is not a DataLoader as a generator, which it begins before training and
  never ends. So the generator goes on from epoch to epoch.
- Keras takes batches ahead: two to see their shapes, and on JAX two more during training. So the
  position after each batch is kept until Keras says that the batch was trained on.

Needs keras, which no extra installs, and a loader of `streamrec.torch` or `streamrec.jax`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from streamrec.pipeline.loading import Epochs

__all__ = ["FitBatches"]


def __dir__() -> list[str]:
    """Only what is public, so that completion shows no helper."""
    return __all__


class FitBatches(keras.callbacks.Callback):
    """The batches of a loader for `model.fit`, and a callback that knows which were trained on.

    Pass `feed.batches()` as the data, with `steps_per_epoch`, and `callbacks=[feed, ...]`:
    callbacks after it that save a checkpoint find the state after the last trained batch in
    `feed.state_dict()`.

    Args:
        loader: A `streamrec.torch.Loader` or `streamrec.jax.Loader`. Its elements are tuples
            `(x, y)` or `(x, y, sample_weight)`: the last function of the dataset makes them.
        repeat: Whether the batches go on with the next epoch when one ends; otherwise they end.
    """

    def __init__(self, loader: Epochs[Any], *, repeat: bool = True) -> None:
        super().__init__()
        if not isinstance(loader, Epochs):
            raise TypeError(
                "streamrec.keras.FitBatches takes a Loader of streamrec.torch or streamrec.jax, "
                f"not a {type(loader).__name__}: pass a DataLoader to model.fit itself"
            )
        self._loader = loader
        self._repeat = repeat
        self._begins = loader.bookmark()
        self._given: deque[Callable[[], dict[str, Any]]] = deque()
        self._trained_in_epoch = 0

    def batches(self) -> Iterator[Any]:
        """The batches, from the loader's next one on. Each call begins there again.

        Raises:
            TypeError: A batch is not a tuple.
        """
        self._given.clear()
        self._begins = self._loader.bookmark()
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        was_empty = False
        while True:
            count = 0
            for batch in self._loader:
                if not isinstance(batch, tuple):
                    raise TypeError(
                        f"model.fit takes tuples (x, y) or (x, y, sample_weight), but a batch is a "
                        f"{type(batch).__name__}: let the last function of the dataset return one, "
                        'as map(lambda batch: (batch["x"], batch["y"]))'
                    )
                self._given.append(self._loader.bookmark())
                count += 1
                yield batch
            # A state after the last batch of an epoch has no batch left of it.
            if not self._repeat or (not count and was_empty):
                return
            was_empty = not count

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that the model was trained on, as JSON."""
        return self._begins()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the batches continue after a state. Call it before `batches()`."""
        self._loader.load_state_dict(state)
        self._begins = self._loader.bookmark()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts the batches of an epoch from 0."""
        self._trained_in_epoch = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Moves the state behind the batches that were trained on since the last call."""
        # More than one with `steps_per_execution`.
        while self._trained_in_epoch <= batch and self._given:
            self._begins = self._given.popleft()
            self._trained_in_epoch += 1
