"""PyTorch loaders over a store that is far away: JPEGs and tokens, from 30 ms and 60 MB/s a connection.

    python -m benchmarks.loaders [--rounds 3] [--only images,tokens]

Needs torch, simplejpeg, s3fs, webdataset, braceexpand and tfrecord, and curl. The store is
`streamrec.testing.objectstore`; it and the loaders have the same cores. Each side is a process of its own that reads
all samples once into batches of tensors; rounds go through all sides in turn, and medians count. The clock starts when
the loader is made, so that starting workers counts, and importing packages does not.

- Loader: `streamrec.torch.Loader`, no workers.
- DataLoader: `streamrec.torch.IterableDataset`, two workers.
- WebDataset: the same samples as tar files, `pipe:curl`, two workers.
- tfrecord: vahidk's reader takes files only, so each shard is fetched by s3fs first; torchdata's StatefulDataLoader,
  two workers.

JPEGs are decoded by simplejpeg on all sides (streamrec decodes batches in threads); tokens become int64, padded to the
longest of the batch. `cpu_ms` is processor time per sample, of workers too, without the store's.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe, median, save
from streamrec.testing.faults import Faults
from streamrec.testing.program import ServerProcess

FAR = Faults(first_byte=0.03, rate=60e6)
SHARDS = 16
KINDS = {"images": (800, 32), "tokens": (16_000, 256)}
"""Samples, and how many make a batch."""
SIDES = ("Loader", "DataLoader", "WebDataset", "tfrecord")
SIDE = 320


def main() -> None:
    """Runs all sides in turn, or one as a child process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measured(*given.child)))
        return
    rows = [row for kind in given.only.split(",") for row in compared(kind, given.rounds)]
    packages = ("torch", "torchdata", "webdataset", "tfrecord", "simplejpeg", "s3fs")
    machine = describe(*packages) | {"load": round(os.getloadavg()[0], 1), "rounds": given.rounds}
    save("loaders", {"machine": machine, "rows": rows})


def compared(kind: str, rounds: int) -> list[dict[str, Any]]:
    """A row for each side."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as root:
        size = write(kind, Path(root) / "data")
        with ServerProcess("streamrec.testing.objectstore", ("--root", root), FAR) as store:
            for _ in range(rounds):
                for side in SIDES:
                    command = [sys.executable, "-m", "benchmarks.loaders", "--child", kind, side, store.url]
                    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
                    found[side].append(json.loads(done.stdout.splitlines()[-1]))
    rows = []
    for side, runs in found.items():
        row = {"kind": kind, "side": side, "samples": KINDS[kind][0], "bytes": size}
        row |= {key: median(run[key] for run in runs) for key in ("samples_s", "cpu_ms", "first_s")}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def samples(kind: str, shard: int) -> Iterator[dict[str, Any]]:
    """The samples of a shard, the same ones every time."""
    import simplejpeg

    rng = np.random.default_rng(shard)
    coarse = np.arange(SIDE)[:, None, None] // 4
    for number in range(KINDS[kind][0] // SHARDS):
        if kind == "tokens":
            yield {"tokens": rng.integers(0, 32_000, int(rng.integers(200, 1001)))}
        else:
            pixels = (coarse + rng.integers(0, 120, (SIDE, SIDE, 3))).astype(np.uint8)
            yield {"image": simplejpeg.encode_jpeg(pixels, quality=75), "label": number % 10}


def write(kind: str, folder: Path) -> int:
    """Writes each shard as TFRecord and as tar; returns the bytes of the TFRecords."""
    import streamrec

    folder.mkdir()
    for shard in range(SHARDS):
        rows = list(samples(kind, shard))
        records = streamrec.encode_records([streamrec.encode_example(row) for row in rows])
        (folder / f"{shard:03d}.tfrecord").write_bytes(records)
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for number, row in enumerate(rows):
                for name, data in parts(row):
                    entry = tarfile.TarInfo(f"{number:06d}.{name}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
    return sum(path.stat().st_size for path in folder.glob("*.tfrecord"))


def parts(row: dict[str, Any]) -> list[tuple[str, bytes]]:
    """A sample's files in a tar."""
    if "tokens" in row:
        return [("tok", row["tokens"].tobytes())]
    return [("jpg", row["image"]), ("cls", str(row["label"]).encode())]


def measured(kind: str, side: str, url: str) -> dict[str, float]:
    """Reads everything once."""
    made = {"Loader": ours, "DataLoader": ours, "WebDataset": webdataset, "tfrecord": vahidk}[side]
    loader = made(kind, url, side)
    before, began = used(), time.perf_counter()
    first, count = 0.0, 0
    for batch in loader():
        first = first or time.perf_counter() - began
        count += len(batch["tokens" if kind == "tokens" else "image"])
    seconds = time.perf_counter() - began
    assert count == KINDS[kind][0], f"{side} gave {count} samples"
    return {"samples_s": count / seconds, "cpu_ms": 1e3 * (used() - before) / count, "first_s": first}


def used() -> float:
    """Processor time of this process and of its children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)


def ours(kind: str, url: str, side: str) -> Callable[[], Any]:
    """Streamrec, without workers or with two."""
    from torch.utils.data import DataLoader

    import streamrec
    from streamrec.torch import IterableDataset, Loader

    features: dict[str, Any] = {"tokens": streamrec.FixedLenSequenceFeature([], np.int64, allow_missing=True)}
    if kind == "images":
        features = {
            "image": streamrec.FixedLenFeature([], bytes),
            "label": streamrec.FixedLenFeature([], np.int64),
        }
    options = {"endpoint_url": url, "anon": True}
    records = streamrec.TFRecordDataset("s3://data/*.tfrecord", num_parallel_reads=SHARDS, storage_options=options)
    dataset = records.distribute().batch(KINDS[kind][1]).parse_example(features)
    if kind == "images":
        dataset = dataset.map(decoded, num_parallel_calls=streamrec.AUTOTUNE)
    if side == "Loader":
        return lambda: Loader(dataset)
    loader: Any = DataLoader
    return lambda: loader(IterableDataset(dataset), batch_size=None, num_workers=2)


def webdataset(kind: str, url: str, side: str) -> Callable[[], Any]:
    """WebDataset over curl."""
    import webdataset as wds
    from torch.utils.data import DataLoader

    names = [f"pipe:curl -s {url}/data/{shard:03d}.tar" for shard in range(SHARDS)]
    rows = wds.WebDataset(names, shardshuffle=False).map(of_tar).batched(KINDS[kind][1], collation_fn=collated)
    loader: Any = DataLoader
    return lambda: loader(rows, batch_size=None, num_workers=2)


def vahidk(kind: str, url: str, side: str) -> Callable[[], Any]:
    """The records of `tfrecord` in torchdata's loader."""
    from torch.utils.data import IterableDataset, get_worker_info
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Records(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            assert worker is not None
            yield from fetched(kind, url, range(worker.id, SHARDS, worker.num_workers))

    loader: Any = StatefulDataLoader
    return lambda: loader(Records(), KINDS[kind][1], num_workers=2, collate_fn=collated)


def fetched(kind: str, url: str, shards: Sequence[int]) -> Iterator[Any]:
    """The samples of shards that are fetched one after the other."""
    import s3fs
    from tfrecord.reader import example_loader

    description = {"tokens": "int"} if kind == "tokens" else {"image": "byte", "label": "int"}
    filesystem = s3fs.S3FileSystem(endpoint_url=url, anon=True)
    with tempfile.TemporaryDirectory() as folder:
        for shard in shards:
            file = f"{folder}/{shard}"
            filesystem.get(f"data/{shard:03d}.tfrecord", file)
            for row in example_loader(file, None, description):
                yield row if kind == "tokens" else {**row, "image": pixels_of(row["image"])}
            os.unlink(file)


def of_tar(row: dict[str, Any]) -> dict[str, Any]:
    """A sample of files."""
    if "tok" in row:
        return {"tokens": np.frombuffer(row["tok"], np.int64)}
    return {"image": pixels_of(row["jpg"]), "label": int(row["cls"])}


def decoded(batch: Any) -> Any:
    """A batch with pixels in the place of its JPEGs."""
    return {**batch, "image": np.stack([pixels_of(image) for image in batch["image"]])}


def pixels_of(image: Any) -> Any:
    """The one decoder of all sides."""
    import simplejpeg

    return simplejpeg.decode_jpeg(bytes(image))


def collated(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Samples as a batch of tensors; tokens padded."""
    import torch

    if "tokens" in rows[0]:
        values = [torch.tensor(row["tokens"]) for row in rows]
        return {"tokens": torch.nn.utils.rnn.pad_sequence(values, batch_first=True)}
    images = torch.from_numpy(np.stack([row["image"] for row in rows]))
    return {"image": images, "label": torch.tensor([int(np.asarray(row["label"]).item()) for row in rows])}


if __name__ == "__main__":
    main()
