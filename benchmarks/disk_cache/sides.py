"""How each library reads the images of one rank, in its documented way, through its own cache.

A side is made once in a process, and gives the images of each epoch. Packages are imported by
`load`, before a clock starts.

What is not the default:

- WebDataset looks at its cache's size every 30 seconds, which is longer than these epochs: here it
  looks before each download. It reads S3 by `curl`, with curl's own signatures.
- MosaicML Streaming needs `clean_stale_shared_memory` after a process was killed. Where shards are
  shuffled, its algorithm is `py1s`, which keeps the images of a shard together, as the others do.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

BATCH = 32
REGION = "us-east-1"

Epoch = Callable[[int], Iterator[bytes]]
"""Gives the images of an epoch, by its number from 0."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a side reads, and through which cache.

    Attributes:
        url: The folder of the shards in the bucket.
        names: The names of the shards.
        endpoint: The store's URL.
        options: The storage options of streamrec.
        cache: The directory of the cache.
        limit: How many bytes it may take; 0 to read without a cache.
        shuffled: Whether each epoch has the shards in another order.
    """

    url: str
    names: list[str]
    endpoint: str
    options: dict[str, Any]
    cache: str
    limit: int
    shuffled: bool

    def in_order(self, epoch: int) -> list[str]:
        """The names of the shards in the order of an epoch."""
        names = list(self.names)
        if self.shuffled:
            random.Random(epoch).shuffle(names)
        return names


def load(side: str) -> None:
    """Imports what a side needs."""
    if side == "Mosaic":
        replace_torchvision()
    for name in MODULES[side]:
        importlib.import_module(name)


def replace_torchvision() -> None:
    """Puts modules without content in the place of a torchvision that does not load.

    PyPI's does not beside a torch without CUDA. MosaicML Streaming imports it for its data sets of
    decoded images, which nothing here uses.
    """
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        vision, datasets, transforms, functional = (
            ModuleType(f"torchvision{name}")
            for name in ("", ".datasets", ".transforms", ".transforms.functional")
        )
        vars(datasets)["VisionDataset"] = object
        vars(functional)["to_tensor"] = None
        for module in (vision, datasets, transforms, functional):
            module.__spec__ = ModuleSpec(module.__name__, None)  # transformers asks for it
            sys.modules[module.__name__] = module


def streamrec_epochs(place: Place) -> Epoch:
    """streamrec: four shards at a time."""
    import numpy as np

    import streamrec

    features = {
        "image": streamrec.FixedLenFeature([], bytes),
        "label": streamrec.FixedLenFeature([], np.int64),
    }
    options = dict(place.options)
    if place.limit:
        options |= {"cache_dir": place.cache, "cache_bytes": place.limit}

    def epoch(number: int) -> Iterator[bytes]:
        # of a pattern, one listing tells the versions
        urls: str | list[str] = f"{place.url}/*.tfrecord"
        if place.shuffled:
            urls = [f"{place.url}/{name}" for name in place.in_order(number)]
        records = streamrec.TFRecordDataset(urls, num_parallel_reads=4, storage_options=options)
        for columns in records.distribute().batch(BATCH).parse_example(features):
            yield from columns["image"]

    return epoch


def webdataset_epochs(place: Place) -> Epoch:
    """WebDataset, with `cache_dir` and `cache_size`."""
    import webdataset as wds

    secret = f"{place.options['key']}:{place.options['secret']}"
    curl = f"pipe:curl -sSf --aws-sigv4 aws:amz:{REGION}:s3 --user {secret}"
    folder = f"{place.endpoint}/{place.url.removeprefix('s3://')}"

    def epoch(number: int) -> Iterator[bytes]:
        dataset = wds.WebDataset(
            [f"{curl} {folder}/{name}" for name in place.in_order(number)],
            shardshuffle=False,
            nodesplitter=wds.split_by_node,
            cache_dir=place.cache if place.limit else None,
            cache_size=place.limit or -1,
        )
        for stage in dataset.pipeline:
            if getattr(stage, "cleaner", None) is not None:
                stage.cleaner.interval = None
        for sample in dataset:
            yield sample["jpg"]

    return epoch


def mosaic_epochs(place: Place) -> Epoch:
    """MosaicML Streaming, with `local` and `cache_limit`."""
    import torch
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    os.environ.update(
        AWS_ACCESS_KEY_ID=place.options["key"],
        AWS_SECRET_ACCESS_KEY=place.options["secret"],
        AWS_DEFAULT_REGION=REGION,
        S3_ENDPOINT_URL=place.endpoint,
    )
    if int(os.environ["WORLD_SIZE"]) > 1:
        # as a trainer does; else it would begin and end a group of its own at each step
        torch.distributed.init_process_group("gloo")
    clean_stale_shared_memory()
    shuffle: dict[str, Any] = {"shuffle": place.shuffled}
    if place.shuffled:
        shuffle |= {"shuffle_algo": "py1s", "num_canonical_nodes": 1}
    dataset = StreamingDataset(
        remote=place.url,
        local=place.cache,
        cache_limit=place.limit or None,
        batch_size=BATCH,
        **shuffle,
    )

    def epoch(number: int) -> Iterator[bytes]:
        for sample in dataset:
            yield sample["image"]

    return epoch


SIDES: dict[str, Callable[[Place], Epoch]] = {
    "streamrec": streamrec_epochs,
    "WebDataset": webdataset_epochs,
    "Mosaic": mosaic_epochs,
}
PEERS = ("WebDataset", "Mosaic")
MODULES = {
    "streamrec": ["streamrec", "streamrec.pipeline.tfrecord_dataset", "s3fs", "gcsfs"],
    "WebDataset": ["webdataset"],
    "Mosaic": ["streaming", "boto3"],
}
DISTRIBUTIONS = {
    "streamrec": ["s3fs", "gcsfs"],
    "WebDataset": ["webdataset"],
    "Mosaic": ["mosaicml-streaming", "boto3", "torch"],
}
