# ruff: noqa: F821 - names of docs/guides/keras.md, after whose programs `test_keras.py` runs these
"""Cases of Keras, in the names of the page."""

from itertools import islice
from typing import Any

import pytest


class StatesAfterSteps(keras.callbacks.Callback):
    """Keeps the state after each step."""

    def __init__(self, feed: Any) -> None:
        super().__init__()
        self.feed = feed
        self.states: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.states.append(json.loads(json.dumps(self.feed.state_dict())))


def batches_after(state: Any) -> list[Any]:
    """The labels and weights of the next batches after a state."""
    feed = streamrec.keras.FitBatches(streamrec.torch.Loader(dataset))
    feed.load_state_dict(state)
    batches = islice(feed.batches(), 3)
    return [[part.tolist() for part in batch] for batch in batches]


def check_each_step(per_execution: int) -> None:
    """The state after each step is that of the batches which the model was trained on."""
    feed = streamrec.keras.FitBatches(streamrec.torch.Loader(dataset))
    ids = StatesAfterSteps(feed)
    model = make_model()
    model.compile("sgd", "sparse_categorical_crossentropy", steps_per_execution=per_execution)
    model.fit(
        feed.batches(), steps_per_epoch=6, epochs=2, callbacks=[feed, ids], verbose=0, shuffle=False
    )
    loader = streamrec.torch.Loader(dataset)
    given = [[part.tolist() for part in batch] for _ in range(2) for batch in loader]
    steps = range(per_execution, 13, per_execution)
    assert len(ids.states) == len(steps)
    for step, state in zip(steps, ids.states, strict=True):
        assert batches_after(state) == given[step : step + 3], step


check_each_step(1)
if keras.backend.backend() == "jax":  # torch takes no other number than 1
    check_each_step(3)

known = DataLoader(streamrec.torch.IterableDataset(dataset), batch_size=None)
assert len(known) == 10
unknown = streamrec.torch.IterableDataset(some)
assert not hasattr(unknown, "__len__")
history = make_model().fit(DataLoader(unknown, batch_size=None), epochs=2, verbose=0, shuffle=False)
assert len(history.history["loss"]) == 2
once = streamrec.keras.FitBatches(streamrec.torch.Loader(dataset), repeat=False)
history = make_model().fit(once.batches(), callbacks=[once], verbose=0, shuffle=False)
left = streamrec.torch.Loader(dataset)
left.load_state_dict(once.state_dict())
assert list(left) == []
dicts = streamrec.keras.FitBatches(streamrec.torch.Loader(even.batch(8).parse_example(features)))
with pytest.raises(TypeError, match=r"model.fit takes tuples \(x, y\)"):
    make_model().fit(dicts.batches(), steps_per_epoch=1, verbose=0)
print(f"all cases ran on {keras.backend.backend()}")
