"""A training run in JAX or Grain that saves its state in a file and resumes from it.

    python -m tests.adapters.killed_run jax|grain URLS OPTIONS STATE

The file also holds the records of each step. The program prints a line for each step.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streamrec import Dataset, FixedLenFeature, TFRecordDataset

EPOCHS = 2
FEATURES = {"id": FixedLenFeature((), np.int64)}


def dataset_of(urls: str, options: dict[str, Any]) -> Dataset[Any]:
    """The data without the adapter: batches in random order, over all epochs."""
    records = TFRecordDataset(urls, storage_options=options, num_parallel_reads=2).shuffle(50, seed=3)
    return records.repeat(EPOCHS).batch(8, drop_remainder=True).parse_example(FEATURES)


def with_jax(dataset: Dataset[Any], saved: dict[str, Any] | None) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Batches on eight devices, and the state after each."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from streamrec.jax import Loader

    loader = Loader(dataset, NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data")))
    if saved is not None:
        loader.load_state_dict(saved)
    for batch in loader:
        yield batch["id"], loader.state_dict()


def with_grain(dataset: Dataset[Any], saved: dict[str, Any] | None) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Batches through a Grain pipeline, and its state after each."""
    from absl import flags

    from streamrec.grain import IterDataset

    flags.FLAGS.mark_as_parsed()
    batches = iter(IterDataset(dataset).map(lambda batch: batch))
    if saved is not None:
        batches.set_state(saved)
    for batch in batches:
        yield batch["id"], batches.get_state()


def main(adapter: str, urls: str, options: str, state: str) -> None:
    """Trains to the end of the epochs."""
    saved = json.loads(Path(state).read_text()) if Path(state).exists() else {"seen": [], "place": None}
    run = {"jax": with_jax, "grain": with_grain}[adapter](dataset_of(urls, json.loads(options)), saved["place"])
    for ids, place in run:
        saved = {"seen": [*saved["seen"], np.asarray(ids).tolist()], "place": place}
        Path(state + ".new").write_text(json.dumps(saved))
        os.replace(state + ".new", state)
        print(len(saved["seen"]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
