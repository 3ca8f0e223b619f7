"""What a record of the demo holds, and how batches get in and out.

A record is a `tf.train.Example` of three features: "image", the grey values of 64 x 64 pixels as bytes, row by
row; "label", the digit; "id", its number in the data set.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import streamrec

__all__ = ["SIDE", "Images", "Labels", "Tally", "encode", "parse"]

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

SIDE = 64
FRAME_BYTES = 16  # TFRecord's length, its CRC, and the record's CRC
FEATURES = {
    "image": streamrec.FixedLenFeature([], bytes),
    "label": streamrec.FixedLenFeature([], np.int64),
}


def encode(images: Images, labels: Labels, first_id: int) -> streamrec.BytesColumn:
    """Records of images: all in one buffer, which `ShardWriter.write_batch` takes as it is.

    Args:
        images: uint8 of shape `[n, SIDE, SIDE]`.
        labels: int64 of shape `[n]`.
        first_id: The first record's number.
    """
    ids = np.arange(first_id, first_id + len(images))
    return streamrec.encode_examples({"image": [image.tobytes() for image in images], "label": labels, "id": ids})


def parse(frames: streamrec.Frames) -> tuple[Images, Labels]:
    """The images, uint8 of shape `[n, SIDE, SIDE]`, and labels, int64 of shape `[n]`, of a batch of records."""
    columns: dict[str, Any] = dict(streamrec.parse_example(frames, FEATURES))
    pixels = np.frombuffer(b"".join(columns["image"]), np.uint8)
    return pixels.reshape(-1, SIDE, SIDE), columns["label"]


@dataclass(slots=True)
class Tally:
    """What went by, in any order: two tallies are equal when the same records went by.

    Attributes:
        records: How many records.
        size: How many bytes they take in a shard.
        checksum: The sum of the records' CRC-32, which is zlib's and not the one that TFRecord uses.
    """

    records: int = 0
    size: int = 0
    checksum: int = 0

    def add(self, records: Iterable[bytes]) -> None:
        """Counts a batch of records."""
        for record in records:
            self.records += 1
            self.size += len(record) + FRAME_BYTES
            self.checksum += zlib.crc32(record)

    def times(self, epochs: int) -> Tally:
        """The tally of reading everything `epochs` times."""
        return Tally(self.records * epochs, self.size * epochs, self.checksum * epochs)
