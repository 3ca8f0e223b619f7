"""The records of the demo, and how to encode and parse them in batches.

A record is a `tf.train.Example` with three features: "image", the grey values of 64 x 64 pixels as
bytes, row by row; "label", the digit; "id", its number in the data set.
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
    """Encodes images as records in one buffer, which `ShardWriter.write_batch` writes as it is.

    Args:
        images: uint8 of shape `[n, SIDE, SIDE]`.
        labels: int64 of shape `[n]`.
        first_id: The number of the first record.
    """
    ids = np.arange(first_id, first_id + len(images))
    return streamrec.encode_examples(
        {"image": [image.tobytes() for image in images], "label": labels, "id": ids}
    )


def parse(frames: streamrec.Frames) -> tuple[Images, Labels]:
    """Returns the images, uint8 of `[n, SIDE, SIDE]`, and the labels, int64 of `[n]`, of a batch of
    records.
    """
    columns: dict[str, Any] = dict(streamrec.parse_example(frames, FEATURES))
    pixels = np.frombuffer(b"".join(columns["image"]), np.uint8)
    return pixels.reshape(-1, SIDE, SIDE), columns["label"]


@dataclass(slots=True)
class Tally:
    """Counts records in any order: two tallies of the same records are equal.

    Attributes:
        records: The number of records.
        size: The bytes that they take in a shard.
        checksum: The sum of the CRC-32 of the records: zlib's CRC-32, not that of TFRecord.
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
        """Returns the tally of reading everything `epochs` times."""
        return Tally(self.records * epochs, self.size * epochs, self.checksum * epochs)
