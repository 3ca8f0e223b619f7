"""The images, and how each library keeps them: TFRecord shards, tar files, and MDS shards.

Imports nothing of streamrec before it is needed: the other libraries' environment need not have it.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.disk_cache.sides import load

IMAGE_BYTES = 100_000
ID_BYTES = 8
FORMATS = {"streamrec": "tfrecord", "WebDataset": "tar", "Mosaic": "mds"}


@dataclass(frozen=True)
class Shape:
    """How the images lie in shards.

    Attributes:
        shards: How many shards there are.
        images: How many images each of them has.
    """

    shards: int
    images: int

    @property
    def total(self) -> int:
        """How many images there are."""
        return self.shards * self.images


def image(number: int) -> bytes:
    """An image's bytes, which begin with its number and do not compress, as those of a JPEG."""
    random = np.random.default_rng(number)
    return number.to_bytes(ID_BYTES, "little") + random.bytes(IMAGE_BYTES - ID_BYTES)


def number_of(image: bytes) -> int:
    """The number that an image begins with.

    >>> number_of(image(70_000))
    70000
    """
    return int.from_bytes(image[:ID_BYTES], "little")


def images_of(shape: Shape, shard: int) -> Iterator[bytes]:
    """The images of one shard."""
    return map(image, range(shard * shape.images, (shard + 1) * shape.images))


def write_tfrecord(folder: str, shards: int, images: int) -> None:
    """Shards of tf.train.Example with an image and a label."""
    import streamrec

    shape = Shape(shards, images)
    for shard in range(shards):
        rows = [
            streamrec.encode_example({"image": data, "label": number_of(data) % 1000})
            for data in images_of(shape, shard)
        ]
        path = Path(folder) / f"{shard:03d}.tfrecord"
        path.write_bytes(streamrec.encode_records(rows))


def write_tar(folder: str, shards: int, images: int) -> None:
    """Shards of WebDataset: the files of an image and of its label."""
    shape = Shape(shards, images)
    for shard in range(shards):
        with tarfile.open(Path(folder) / f"{shard:03d}.tar", "w") as tar:
            for data in images_of(shape, shard):
                number = number_of(data)
                for ending, content in (("jpg", data), ("cls", b"%d" % (number % 1000))):
                    entry = tarfile.TarInfo(f"{number:06d}.{ending}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))


def write_mds(folder: str, shards: int, images: int) -> None:
    """MosaicML's shards, with as many images as the others."""
    load("Mosaic")
    from streaming import MDSWriter

    # the size of a shard is all that the writer takes: room for its images and their offsets
    size = images * (IMAGE_BYTES + 100) + 2000
    assert size < (images + 1) * IMAGE_BYTES
    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=folder, columns=columns, size_limit=size) as writer:
        for shard in range(shards):
            for data in images_of(Shape(shards, images), shard):
                writer.write({"image": data, "label": number_of(data) % 1000})
    found = len(list(Path(folder).glob("*.mds")))
    assert found == shards, f"MDSWriter wrote {found} shards"


WRITERS = {"tfrecord": write_tfrecord, "tar": write_tar, "mds": write_mds}


def versions_of(names: list[str]) -> dict[str, str]:
    """The versions of distributions, in the environment that this process has."""
    return {name: version(name) for name in names}
