"""What a newcomer does with an installed streamrec: run by an interpreter that has the wheel, and
no checkout.

python installed.py http://127.0.0.1:PORT/FOLDER FOLDER
"""

import asyncio
import shutil
import sys
from pathlib import Path

import numpy as np

import streamrec
from streamrec import FixedLenFeature

RECORDS = 3000
FEATURES = {"label": FixedLenFeature([], np.int64), "name": FixedLenFeature([], bytes)}


async def write_shards_with_manifest(folder: str) -> None:
    """Shards with a manifest."""
    names = f"{folder}/train-{{shard:03d}}.tfrecord"
    async with streamrec.ShardWriter(
        names, max_shard_records=1000, manifest=f"{folder}/manifest.json"
    ) as writer:
        for number in range(RECORDS):
            await writer.write(
                streamrec.encode_example({"label": number, "name": b"name %d" % number})
            )


def labels_of(url: str) -> list[int]:
    """Parsed as they stream."""
    dataset = (
        streamrec.TFRecordDataset(f"{url}/train-{{000..002}}.tfrecord")
        .batch(100)
        .parse_example(FEATURES)
    )
    return [int(label) for batch in dataset for label in batch["label"]]


def main(url: str, folder: str) -> None:
    assert Path(sys.prefix) in Path(streamrec.__file__).parents, streamrec.__file__
    assert not any(map(shutil.which, ("cc", "gcc", "clang", "c++"))), "there is a compiler"
    asyncio.run(write_shards_with_manifest(folder))
    assert streamrec.verify_sync(f"{folder}/manifest.json").ok
    assert labels_of(folder) == labels_of(url) == list(range(RECORDS))
    print("all is well on", sys.version.split()[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
