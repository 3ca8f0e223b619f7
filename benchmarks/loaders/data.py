"""The samples, and how each library keeps them: TFRecord shards, tar files, MDS and LitData
folders.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["KINDS", "SHARDS", "samples", "write"]

SHARDS = 16
KINDS = {"images": (800, 32), "tokens": (16_000, 256)}
"""Samples, and how many make a batch."""
SIDE = 320
VOCABULARY = 32_000


def samples(kind: str, shard: int) -> Iterator[dict[str, Any]]:
    """The samples of a shard, the same ones every time: a JPEG and its label, or int32 tokens."""
    import simplejpeg

    rng = np.random.default_rng(shard)
    coarse = np.arange(SIDE)[:, None, None] // 4
    for number in range(KINDS[kind][0] // SHARDS):
        if kind == "tokens":
            yield {"tokens": rng.integers(0, VOCABULARY, int(rng.integers(200, 1001)), np.int32)}
        else:
            pixels = (coarse + rng.integers(0, 120, (SIDE, SIDE, 3))).astype(np.uint8)
            yield {"image": simplejpeg.encode_jpeg(pixels, quality=75), "label": number % 10}


def write(kind: str, folder: Path, formats: set[str]) -> dict[str, int]:
    """Writes all samples in these formats (tfrecord, tar, mds, litdata); the bytes of each."""
    folder.mkdir(parents=True)
    for shard in range(SHARDS):
        rows = list(samples(kind, shard))
        write_tfrecord(folder / f"{shard:03d}.tfrecord", rows)
        write_tar(folder / f"{shard:03d}.tar", rows)
    sizes = {
        end: sum(path.stat().st_size for path in folder.glob(f"*.{end}"))
        for end in ("tfrecord", "tar")
    }
    if "mds" in formats:
        write_mds(kind, folder / "mds", sizes["tfrecord"] // SHARDS)
    if "litdata" in formats:
        write_litdata(kind, folder / "litdata")
    for name in formats & {"mds", "litdata"}:
        sizes[name] = sum(
            path.stat().st_size for path in (folder / name).rglob("*") if path.is_file()
        )
    return sizes


def write_tfrecord(path: Path, rows: list[dict[str, Any]]) -> None:
    """One shard of tf.train.Example."""
    import streamrec

    path.write_bytes(streamrec.encode_records([streamrec.encode_example(row) for row in rows]))


def write_tar(path: Path, rows: list[dict[str, Any]]) -> None:
    """One shard of WebDataset."""
    with tarfile.open(path, "w") as tar:
        for number, row in enumerate(rows):
            files = {"tok": row["tokens"].tobytes()} if "tokens" in row else {"jpg": row["image"]}
            if "label" in row:
                files["cls"] = str(row["label"]).encode()
            for name, data in files.items():
                entry = tarfile.TarInfo(f"{number:06d}.{name}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


def write_mds(kind: str, folder: Path, size: int) -> None:
    """Mosaic's shards, as large as those of TFRecord."""
    from streaming import MDSWriter

    columns = {"tokens": "bytes"} if kind == "tokens" else {"image": "bytes", "label": "int"}
    with MDSWriter(out=str(folder), columns=columns, size_limit=size) as writer:
        for row in every(kind):
            writer.write(row if kind == "images" else {"tokens": row["tokens"].tobytes()})


def write_litdata(kind: str, folder: Path) -> None:
    """LitData's chunks, each of a shard's samples."""
    import litdata

    litdata.optimize(
        fn=Rows(kind),
        inputs=list(range(SHARDS)),
        output_dir=str(folder),
        chunk_size=KINDS[kind][0] // SHARDS,
        num_workers=1,
    )


class Rows:
    """The samples of a shard as LitData takes them; it is pickled for LitData's worker."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, shard: int) -> Iterator[Any]:
        for row in samples(self.kind, shard):
            yield row if self.kind == "images" else {"tokens": row["tokens"].tobytes()}


def every(kind: str) -> Iterator[dict[str, Any]]:
    """All samples."""
    for shard in range(SHARDS):
        yield from samples(kind, shard)
