"""Programs that end with something open: `python -m tests.bridge.scripts.open_ends FOLDER CASE`."""

import asyncio
import gc
import sys
from typing import Any

from streamrec import ShardWriter, TFRecordDataset, TFRecordWriter

KEPT: list[Any] = []


def cached(folder: str) -> None:
    iterator = iter(TFRecordDataset(f"{folder}/x.tfrecord").cache(f"{folder}/cache"))
    next(iterator)
    KEPT.append(iterator)


def sync_writer(folder: str) -> None:
    writer = TFRecordWriter(f"{folder}/new.tfrecord")
    writer.write(bytes(3_000_000))
    KEPT.append(writer)


def async_writer(folder: str) -> None:
    async def main() -> None:
        writer = await ShardWriter(f"{folder}/new.tfrecord").__aenter__()
        await writer.write(bytes(3_000_000))
        KEPT.append(writer)

    asyncio.run(main())


def dropped_iterators(folder: str) -> None:
    async def main(steps: int) -> None:
        iterator = TFRecordDataset(f"{folder}/x.tfrecord").aiterate()
        await anext(iterator)
        for _ in range(steps):
            await asyncio.sleep(0)

    for steps in range(20):
        asyncio.run(main(steps))
        gc.collect()


if __name__ == "__main__":
    folder, case, ending = sys.argv[1:]
    globals()[case](folder)
    if ending == "error":
        raise ZeroDivisionError
    if ending == "exit":
        sys.exit(7)
