"""What an order does to a model that is trained on data sorted by label, and how other loaders' orders do."""

import numpy as np
import pytest

from benchmarks.shuffle_quality import accuracy, neighbours, sorted_by_label
from benchmarks.shuffles import SHUFFLES

RECORDS, SHARDS, MEMORY = 65536, 64, 4096


@pytest.mark.parametrize("name", SHUFFLES)
def test_each_gives_each_record_once(name: str) -> None:
    """Ours and those of others, as they are simulated."""
    order = SHUFFLES[name](4096, SHARDS, 256, 1)
    assert sorted(order.tolist()) == list(range(4096))


def test_blocks_train_as_well_as_a_permutation() -> None:
    """Within half a point, where a shuffle buffer of the same memory is far below."""
    data = sorted_by_label(RECORDS, 1)
    found = {
        name: 100 * accuracy(SHUFFLES[name](RECORDS, SHARDS, MEMORY, 1), data, 1)
        for name in ("permutation", "exact", "blocks", "tf.data")
    }
    assert found["exact"] > found["permutation"] - 0.5
    assert found["blocks"] > found["permutation"] - 0.5
    assert found["tf.data"] < found["permutation"] - 5


def test_blocks_are_spread_over_the_epoch() -> None:
    """Where a record lies says next to nothing of when it comes; a buffer moves it by what it holds."""
    places = np.arange(RECORDS)
    correlated = {
        name: abs(np.corrcoef(SHUFFLES[name](RECORDS, SHARDS, MEMORY, 3), places)[0, 1])
        for name in ("exact", "blocks", "tf.data")
    }
    assert correlated["exact"] < 0.02
    assert correlated["blocks"] < 0.15
    assert correlated["tf.data"] > 0.9
    assert neighbours(np.arange(RECORDS)) == 256
