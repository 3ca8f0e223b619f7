"""The loaders: each is made over the store's URL, and gives batches of tensors.

Packages are imported before the clock starts: `PACKAGES`, and those of `PACKAGE_OF`, in a process
that those of all sides are forked from (s3fs too, which streamrec imports when it is needed);
`tfrecord` and TensorFlow, which do not go together, by their sides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.loaders.data import KINDS, SHARDS

__all__ = ["PACKAGES", "PACKAGE_OF", "SIDES"]

Made = Callable[[], Any]
Side = Callable[[str, str, str], Made]
WORKERS = 2
PACKAGES = [
    "torchdata.stateful_dataloader",
    "streamrec.torch",
    "s3fs",
    "simplejpeg",
    "webdataset",
]
PACKAGE_OF = {"Mosaic": "streaming", "LitData": "litdata"}
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def streamrec_dataset(kind: str, url: str) -> Any:
    """Batches of columns; JPEGs are decoded in threads."""
    import streamrec

    features: dict[str, Any] = {
        "tokens": streamrec.FixedLenSequenceFeature([], np.int64, allow_missing=True)
    }
    if kind == "images":
        features = {
            "image": streamrec.FixedLenFeature([], bytes),
            "label": streamrec.FixedLenFeature([], np.int64),
        }
    options = {"endpoint_url": url, "anon": True}
    records = streamrec.TFRecordDataset(
        "s3://data/*.tfrecord", num_parallel_reads=SHARDS, storage_options=options
    )
    dataset = records.distribute().batch(KINDS[kind][1]).parse_example(features)
    return (
        dataset.map(decoded, num_parallel_calls=streamrec.AUTOTUNE) if kind == "images" else dataset
    )


def loader(kind: str, url: str, folder: str) -> Made:
    """streamrec.torch.Loader: no worker processes."""
    from streamrec.torch import Loader

    dataset = streamrec_dataset(kind, url)
    return lambda: Loader(dataset)


def data_loader(workers: int) -> Side:
    """streamrec.torch.IterableDataset in a DataLoader."""

    def made(kind: str, url: str, folder: str) -> Made:
        from torch.utils.data import DataLoader

        from streamrec.torch import IterableDataset

        dataset, torchs = streamrec_dataset(kind, url), DataLoader
        return lambda: torchs(IterableDataset(dataset), batch_size=None, num_workers=workers)

    return made


def webdataset(kind: str, url: str, folder: str) -> Made:
    """WebDataset over curl."""
    import webdataset as wds
    from torch.utils.data import DataLoader

    names = [f"pipe:curl -s {url}/data/{shard:03d}.tar" for shard in range(SHARDS)]
    rows = (
        wds.WebDataset(names, shardshuffle=False)
        .map(of_files)
        .batched(KINDS[kind][1], collation_fn=collated)
    )
    torchs: Any = DataLoader
    return lambda: torchs(rows, batch_size=None, num_workers=WORKERS)


def mosaic(kind: str, url: str, folder: str) -> Made:
    """MosaicML Streaming, whose cache is a folder that is empty at first."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    os.environ.update(CREDENTIALS, S3_ENDPOINT_URL=url)

    def begun() -> Any:
        dataset = StreamingDataset(
            remote="s3://data/mds", local=folder, batch_size=KINDS[kind][1], shuffle=False
        )
        # Forked workers gave samples of no bytes. The time of these, children of another process,
        # is not counted.
        how: dict[str, Any] = {"num_workers": WORKERS, "multiprocessing_context": "forkserver"}
        return DataLoader(dataset, KINDS[kind][1], collate_fn=collated_raw, **how)

    return begun


def litdata(kind: str, url: str, folder: str) -> Made:
    """LitData, whose cache is a folder that is empty at first."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # its client takes https alone
    options = {
        "endpoint_url": url,
        "aws_access_key_id": "any",
        "aws_secret_access_key": "any",
        "region_name": "us-east-1",
    }

    def begun() -> Any:
        dataset = StreamingDataset(
            "s3://data/litdata", cache_dir=folder, storage_options=options, shuffle=False
        )
        return StreamingDataLoader(
            dataset, batch_size=KINDS[kind][1], num_workers=WORKERS, collate_fn=collated_raw
        )

    return begun


def vahidk(kind: str, url: str, folder: str) -> Made:
    """The reader of `tfrecord` in torchdata's loader: it takes files, so each shard is fetched
    before it is read.
    """
    import tfrecord.reader  # noqa: F401
    from torch.utils.data import IterableDataset, get_worker_info
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Records(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            assert worker is not None
            yield from fetched(kind, url, folder, range(worker.id, SHARDS, worker.num_workers))

    torchs: Any = StatefulDataLoader
    return lambda: torchs(Records(), KINDS[kind][1], num_workers=WORKERS, collate_fn=collated)


def fetched(kind: str, url: str, folder: str, shards: Sequence[int]) -> Iterator[Any]:
    """The samples of shards that are fetched one after the other."""
    import s3fs
    from tfrecord.reader import example_loader

    description = {"tokens": "int"} if kind == "tokens" else {"image": "byte", "label": "int"}
    filesystem = s3fs.S3FileSystem(endpoint_url=url, anon=True)
    for shard in shards:
        file = f"{folder}/{shard}"
        filesystem.get(f"data/{shard:03d}.tfrecord", file)
        for row in example_loader(file, None, description):
            yield row if kind == "tokens" else {**row, "image": pixels_of(row["image"])}
        os.unlink(file)


def tf_data(kind: str, url: str, folder: str) -> Made:
    """tf.data: its packages read no S3 any more, so s3fs fetches all shards at once, each before it
    is read.
    """
    import s3fs
    import tensorflow as tf
    import torch

    filesystem = s3fs.S3FileSystem(endpoint_url=url, anon=True)
    features = {"tokens": tf.io.RaggedFeature(tf.int64)}
    if kind == "images":
        features = {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }

    def copied(shard: Any) -> bytes:
        filesystem.get(f"data/{int(shard):03d}.tfrecord", f"{folder}/{int(shard)}")
        return f"{folder}/{int(shard)}".encode()

    def parsed(rows: Any) -> Any:
        batch = tf.io.parse_example(rows, features)
        if kind == "tokens":
            return {"tokens": batch["tokens"].to_tensor()}
        images = tf.numpy_function(
            lambda each: np.stack([pixels_of(image) for image in each]), [batch["image"]], tf.uint8
        )
        return {"image": images, "label": batch["label"]}

    def begun() -> Any:
        files = tf.data.Dataset.range(SHARDS).map(
            lambda shard: tf.numpy_function(copied, [shard], tf.string),
            num_parallel_calls=SHARDS,
        )
        records = files.interleave(
            tf.data.TFRecordDataset, cycle_length=SHARDS, num_parallel_calls=tf.data.AUTOTUNE
        )
        batches = records.batch(KINDS[kind][1]).map(parsed, num_parallel_calls=tf.data.AUTOTUNE)
        for batch in batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
            yield {name: torch.from_numpy(array) for name, array in batch.items()}

    return begun


SIDES: dict[str, Side] = {
    "Loader": loader,
    "DataLoader, 0 workers": data_loader(0),
    "DataLoader, 2 workers": data_loader(WORKERS),
    "WebDataset": webdataset,
    "Mosaic": mosaic,
    "LitData": litdata,
    "tfrecord": vahidk,
    "tf.data": tf_data,
}


def of_files(row: dict[str, Any]) -> dict[str, Any]:
    """A sample of a tar."""
    if "tok" in row:
        return {"tokens": tokens_of(row["tok"])}
    return {"image": pixels_of(row["jpg"]), "label": int(row["cls"])}


def decoded(batch: Any) -> Any:
    """A batch with pixels in the place of its JPEGs."""
    return {**batch, "image": np.stack([pixels_of(image) for image in batch["image"]])}


def pixels_of(image: Any) -> Any:
    """The one decoder of all sides."""
    import simplejpeg

    return simplejpeg.decode_jpeg(bytes(image))


def tokens_of(data: bytes) -> Any:
    """Tokens as int64."""
    return np.frombuffer(data, np.int32).astype(np.int64)


def collated_raw(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Samples of bytes as a batch of tensors."""
    if "tokens" in rows[0]:
        return collated([{"tokens": tokens_of(row["tokens"])} for row in rows])
    return collated([{**row, "image": pixels_of(row["image"])} for row in rows])


def collated(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Samples as a batch of tensors; tokens padded."""
    import torch

    if "tokens" in rows[0]:
        values = [torch.tensor(row["tokens"]) for row in rows]
        return {"tokens": torch.nn.utils.rnn.pad_sequence(values, batch_first=True)}
    images = torch.from_numpy(np.stack([row["image"] for row in rows]))
    return {
        "image": images,
        "label": torch.tensor([int(np.asarray(row["label"]).item()) for row in rows]),
    }
