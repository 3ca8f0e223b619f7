"""What `benchmarks.pipeline` and `benchmarks.training` read: four kinds of records, in 16 shards
each.

They are written by `encode_examples`, with a generator of its own for each shard: every run has the
same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamrec import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    RaggedTensor,
    encode_examples,
    encode_records,
)
from streamrec.example.features import Feature

SHARDS = 16
BUDGET = 256_000_000
WORDS = [b"cat", b"dog", b"chicken", b"horse", b"goat"]
MIN_TOKENS, MAX_TOKENS = 200, 1000

Columns = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of records, and what is done with them.

    Args:
        key: Its name in `KINDS`.
        bar: How many times tf.data's speed is wanted.
        records: How many, in all shards.
        columns: Makes so many of them.
        features: What is parsed, for streamrec; `benchmarks.contenders` makes them TensorFlow's.
        tfrecord_types: The same for the package `tfrecord`.
        batch: How many make a batch.
        shuffle: The size of the shuffle buffer; 0 for none.
        budget: Bytes that streamrec may hold; a quarter of what reaches it is what its shuffle
            buffer may hold.
        loader_shards: How many shards the DataLoader reads, where all would take minutes.
    """

    key: str
    bar: float
    records: int
    columns: Callable[[np.random.Generator, int], Columns]
    features: Mapping[str, Feature]
    tfrecord_types: Mapping[str, str]
    batch: int
    shuffle: int
    budget: int
    loader_shards: int

    @property
    def padded(self) -> bool:
        """Whether rows differ in length, and are padded to the batch's longest."""
        return self.in_rows or any(
            isinstance(feature, FixedLenSequenceFeature) for feature in self.features.values()
        )

    @property
    def in_rows(self) -> bool:
        """Whether they are parsed as they are, and padded by `padded_batch`; else while they are
        parsed.
        """
        return any(isinstance(feature, RaggedFeature) for feature in self.features.values())


def four(rng: np.random.Generator, count: int) -> Columns:
    """The four scalar features of TensorFlow's tutorial: 84 bytes a record."""
    choice = rng.integers(0, 5, count)
    return {
        "feature0": rng.integers(0, 2, count),
        "feature1": choice,
        "feature2": [WORDS[index] for index in choice.tolist()],
        "feature3": rng.standard_normal(count).astype(np.float32),
    }


INTS = [f"int_feature_{index}" for index in range(20)]
FLOATS = [f"float_feature_{index}" for index in range(20)]


def forty(rng: np.random.Generator, count: int) -> Columns:
    """Forty scalar features, as of a table of clicks."""
    columns: Columns = {name: rng.integers(0, 1_000_000, count) for name in INTS}
    return columns | {name: rng.standard_normal(count).astype(np.float32) for name in FLOATS}


def images(rng: np.random.Generator, count: int) -> Columns:
    """Bytes of about 110 kB, as of a JPEG image, and a label."""
    sizes = rng.integers(90_000, 130_000, count).tolist()
    return {"image": [rng.bytes(size) for size in sizes], "label": rng.integers(0, 1000, count)}


def tokens(rng: np.random.Generator, count: int) -> Columns:
    """One list of 200 to 1,000 token numbers of a vocabulary of 32,000."""
    lengths = rng.integers(MIN_TOKENS, MAX_TOKENS + 1, count)
    values = rng.integers(0, 32_000, int(lengths.sum()))
    return {"tokens": RaggedTensor(values, (np.concatenate([[0], np.cumsum(lengths)]),))}


FOUR_FEATURES: dict[str, Feature] = {
    "feature0": FixedLenFeature([], np.int64, 0),
    "feature1": FixedLenFeature([], np.int64, 0),
    "feature2": FixedLenFeature([], bytes, b""),
    "feature3": FixedLenFeature([], np.float32, 0.0),
}
FORTY_FEATURES: dict[str, Feature] = {name: FixedLenFeature([], np.int64) for name in INTS}
FORTY_FEATURES |= {name: FixedLenFeature([], np.float32) for name in FLOATS}

LISTED = (
    Kind(
        key="four",
        bar=10,
        records=400_000,
        columns=four,
        features=FOUR_FEATURES,
        tfrecord_types={
            "feature0": "int",
            "feature1": "int",
            "feature2": "byte",
            "feature3": "float",
        },
        batch=1024,
        shuffle=100_000,
        budget=BUDGET,
        loader_shards=2,
    ),
    Kind(
        key="forty",
        bar=6,
        records=160_000,
        columns=forty,
        features=FORTY_FEATURES,
        tfrecord_types=dict.fromkeys(INTS, "int") | dict.fromkeys(FLOATS, "float"),
        batch=1024,
        shuffle=100_000,
        budget=800_000_000,
        loader_shards=2,
    ),
    Kind(
        key="images",
        bar=2.5,
        records=6_000,
        columns=images,
        features={"image": FixedLenFeature([], bytes), "label": FixedLenFeature([], np.int64)},
        tfrecord_types={"image": "byte", "label": "int"},
        batch=32,
        shuffle=2_000,
        budget=1_400_000_000,
        loader_shards=16,
    ),
    Kind(
        key="tokens",
        bar=6,
        records=96_000,
        columns=tokens,
        features={"tokens": FixedLenSequenceFeature([], np.int64, allow_missing=True)},
        tfrecord_types={"tokens": "int"},
        batch=256,
        shuffle=0,
        budget=BUDGET,
        loader_shards=2,
    ),
    Kind(
        key="padded",
        bar=6,
        records=80_000,
        columns=tokens,
        features={"tokens": RaggedFeature(np.int64)},
        tfrecord_types={"tokens": "int"},
        batch=256,
        shuffle=0,
        budget=BUDGET,
        loader_shards=8,
    ),
)
KINDS = {kind.key: kind for kind in LISTED}


def write(kind: Kind, folder: Path) -> list[str]:
    """Writes the shards of one kind; gives their paths."""
    paths = []
    for shard in range(SHARDS):
        path = folder / f"{shard:02d}.tfrecord"
        rng = np.random.default_rng(shard)
        left = kind.records // SHARDS
        with path.open("wb") as file:
            while left:
                count = min(left, 500)
                file.write(encode_records(encode_examples(kind.columns(rng, count))))
                left -= count
        paths.append(str(path))
    return paths
