"""How random orders are, and what that does to a model: ours beside those of other loaders with the
same memory.

    python -m benchmarks.shuffle_quality [--records 1048576] [--seeds 3]

Records stand in 64 shards, and a sixteenth of them fits in memory (`benchmarks.shuffles` has the
algorithms). Columns:

- moved: how far a record is from its place in the data set, as a share of it: a third on average in
  a permutation.
- correlated: of a record's place in the data set and its position, the greatest seen.
- neighbours: of a batch of 256, how many have another record of the batch within 1,000 places of
  theirs.
- accuracy: of a softmax regression that was trained for one epoch on data sorted by label, in
  percent; and the least.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.shuffles import SHUFFLES, Order

__all__ = ["accuracy", "neighbours", "sorted_by_label"]

Floats = npt.NDArray[np.float64]
BATCH = 256
NEAR = 1000
SHARDS, PART = 64, 16
CLASSES, FEATURES = 10, 20


def main(*, records: int = 1 << 20, trained: int = 1 << 18, seeds: int = 3) -> None:
    """Prints and keeps the table."""
    rows = []
    for name in SHUFFLES:
        rows.append({"shuffle": name, **measured(name, records, trained, seeds)})
        print(rows[-1], flush=True)
    save("shuffle_quality", ["numpy"], records=records, trained=trained, seeds=seeds, rows=rows)


def measured(name: str, records: int, trained: int, seeds: int) -> dict[str, Any]:
    """One row."""
    orders = [SHUFFLES[name](records, SHARDS, records // PART, seed) for seed in range(seeds)]
    places = np.arange(records)
    found = [
        accuracy(
            SHUFFLES[name](trained, SHARDS, trained // PART, seed),
            sorted_by_label(trained, seed),
            seed,
        )
        for seed in range(seeds)
    ]
    return {
        "moved": round(
            float(np.mean([np.abs(order - places).mean() / records for order in orders])), 3
        ),
        "correlated": round(
            max(abs(float(np.corrcoef(order, places)[0, 1])) for order in orders), 3
        ),
        "neighbours": round(float(np.mean([neighbours(order) for order in orders])), 1),
        "accuracy": round(100 * float(np.mean(found)), 2),
        "least": round(100 * min(found), 2),
    }


def neighbours(order: Order, batch: int = BATCH, near: int = NEAR) -> float:
    """Of a batch, how many records have another one of the batch within so many places of the data
    set; the mean.
    """
    batches = np.sort(order[: len(order) // batch * batch].reshape(-1, batch), axis=1)
    close = np.diff(batches, axis=1) <= near
    none = np.zeros((len(batches), 1), bool)
    return float((np.hstack([close, none]) | np.hstack([none, close])).sum(axis=1).mean())


def sorted_by_label(records: int, seed: int) -> tuple[Floats, Order, Floats, Order]:
    """Examples in classes that overlap, sorted by label; and as many as a tenth of them to test
    with.
    """
    chance = np.random.default_rng(seed)
    centres = chance.normal(size=(CLASSES, FEATURES)) * 0.75

    def drawn(count: int) -> tuple[Floats, Order]:
        labels = np.sort(chance.integers(0, CLASSES, count))
        return centres[labels] + chance.normal(size=(count, FEATURES)), labels

    return *drawn(records), *drawn(records // 10)


def accuracy(
    order: Order, data: tuple[Floats, Order, Floats, Order], seed: int, batch: int = 64
) -> float:
    """The share of the test examples that a softmax regression gets right, trained for one epoch in
    this order.
    """
    examples, labels, tested, wanted = data
    weights, moving = np.zeros((FEATURES + 1, CLASSES)), np.zeros((FEATURES + 1, CLASSES))
    for first in range(0, len(order) // batch * batch, batch):
        rows = order[first : first + batch]
        given = np.hstack([examples[rows], np.ones((batch, 1))])
        scores = given @ weights
        scores -= scores.max(axis=1, keepdims=True)
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        shares[np.arange(batch), labels[rows]] -= 1
        moving = 0.9 * moving + given.T @ shares / batch
        weights -= 0.02 * (1 - first / len(order)) * moving  # as one trains: the rate falls to 0
    guessed = (np.hstack([tested, np.ones((len(tested), 1))]) @ weights).argmax(axis=1)
    return float((guessed == wanted).mean())


if __name__ == "__main__":
    run(main)
