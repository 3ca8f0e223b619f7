"""The records: "image", a grey JPEG of 64 x 64 pixels; "label", the digit; "id", its number."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

import streamrec
from examples.demo.data import batches

__all__ = ["SIDE", "batches_of", "write"]

SIDE = 64
FEATURES = {
    "image": streamrec.FixedLenFeature([], bytes),
    "label": streamrec.FixedLenFeature([], np.int64),
    "id": streamrec.FixedLenFeature([], np.int64),
}


async def write(pattern: str, storage_options: Mapping[str, Any], records: int) -> int:
    """Writes shards of handwritten digits.

    Args:
        pattern: The names of the shards, with `{shard}`.
        storage_options: As for fsspec.
        records: The number of records.

    Returns:
        The number of shards.
    """
    number = 0
    async with streamrec.ShardWriter(
        pattern, max_shard_records=300, storage_options=storage_options
    ) as writer:
        for images, labels in batches(records, held_out=False):
            for image, label in zip(images, labels, strict=True):
                await writer.write(
                    streamrec.encode_example({"image": jpeg(image), "label": label, "id": number})
                )
                number += 1
    return len(writer.shards)


def batches_of(url: str, storage_options: Mapping[str, Any], size: int) -> streamrec.Dataset[Any]:
    """Shuffled batches: "image" float32 of `[n, 1, SIDE, SIDE]` from 0 to 1, "label" and "id" int64
    of `[n]`.
    """
    records = streamrec.TFRecordDataset(url, num_parallel_reads=4, storage_options=storage_options)
    shuffled = records.distribute().shuffle(500, seed=1)
    parsed = shuffled.batch(size, drop_remainder=True).parse_example(FEATURES)
    return parsed.map(decoded, num_parallel_calls=2)


def decoded(batch: Any) -> Any:
    """Returns a batch with pixels instead of JPEGs."""
    pixels = np.stack([np.asarray(Image.open(BytesIO(image))) for image in batch["image"]])
    return {**batch, "image": pixels[:, None].astype(np.float32) / 255}


def jpeg(image: npt.NDArray[np.uint8]) -> bytes:
    """Encodes a grey image as JPEG."""
    file = BytesIO()
    Image.fromarray(image).save(file, "jpeg", quality=90)
    return file.getvalue()
