"""Shards, gone through record by record with every CRC32C checked; what is good may be written to a clean copy."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import streamrec
from streamrec.cli.progress import Meter
from streamrec.cli.reading import blocks, open_to_scan, run
from streamrec.cli.sources import Found, storages_for
from streamrec.storage import Replacement

__all__ = ["Scan", "scan", "scan_alone"]


@dataclass(frozen=True, slots=True)
class Scan:
    """What was found in one shard.

    Attributes:
        path: Its URL.
        records: How many good records it holds.
        losses: What is damaged, in order; the first thousand of it.
        damages: How many of them there are.
        lost_bytes: How many bytes they are together, as far as that is known.
        copy: Where the good records were written to, or None.
    """

    path: str
    records: int
    losses: tuple[streamrec.Loss, ...]
    damages: int
    lost_bytes: int
    copy: str | None

    def as_json(self) -> dict[str, Any]:
        """The same as an object of JSON."""
        losses = [
            {"byte": loss.offset, "bytes": loss.nbytes, "record": loss.record, "reason": loss.reason}
            for loss in self.losses
        ]
        return {
            "path": self.path,
            "records": self.records,
            "damages": self.damages,
            "losses": losses,
            "copy": self.copy,
        }


async def scan(
    shard: Found, copy: str | None, objects: Replacement, storage_options: Mapping[str, Any], meter: Meter
) -> Scan:
    """Reads one shard to its end, past all damage.

    Args:
        shard: The shard.
        copy: Where its good records are written to, compressed as the shard is; None for nowhere.
        objects: The set that the copy joins.
        storage_options: Where both lie.
        meter: Is told of the bytes that were read.
    """
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(open_to_scan(shard, storage_options, on_error="resync"))
        writer = None
        if copy is not None:
            writer = streamrec.ShardWriter(copy, reader.compression_type, storage_options=storage_options)
            writer.objects = objects
            await stack.enter_async_context(writer)
        async for frames in blocks(reader, meter):
            if writer is not None:
                await copy_long_records(reader, writer)
                await writer.write_batch(frames)
        if writer is not None:
            await copy_long_records(reader, writer)
        lost_bytes = reader.statistics.lost_bytes
    return Scan(shard.path, reader.place.record, tuple(reader.losses), reader.skipped, lost_bytes, copy)


async def copy_long_records(reader: streamrec.ShardReader, writer: streamrec.ShardWriter) -> None:
    """Copies the records that were checked and not held: their bytes are read once more, and go through in pieces."""
    for record in reader.take_long_records():
        frame = reader.plain_bytes(record.offset, record.offset + record.nbytes)
        await writer.write_frame(frame, record.length)


def scan_alone(work: tuple[Found, str | None], storage_options: Mapping[str, Any]) -> Scan:
    """`scan` of one shard, on a worker of a cluster."""

    async def go() -> Scan:
        async with (
            storages_for(storage_options) as storages,
            Replacement(storages, stages=False, keeps=False) as objects,
        ):
            return await scan(*work, objects, storage_options, Meter())

    return run(go())
