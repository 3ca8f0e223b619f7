"""All objects of one writer: its shards, then the manifest and the index that describe them.

Rules:
- Shards that were finished before an exception stay, because each is complete. If names are taken,
  the shards that replace others appear together, when all are complete (`storage/replacement.py`).
- The manifest and the index are written last, when all shards are complete.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.display import display_text
from streamrec.errors import StreamrecError
from streamrec.shards.index import IndexedShard, encode_index
from streamrec.shards.leftovers import (
    Described,
    Leftovers,
    find_described,
    find_leftovers,
    warn_of,
    warn_of_staging,
)
from streamrec.shards.manifest import FRAME_BYTES, Manifest, ShardInfo
from streamrec.shards.patterns import shard_path
from streamrec.shards.places import portable
from streamrec.shards.shard_target import BLOCK_BYTES, ShardTarget
from streamrec.shards.shard_upload import ShardUpload
from streamrec.storage import Replacement, Storages, Upload
from streamrec.storage.tasks import for_each, run_concurrently
from streamrec.tfrecord import Deflater, Frames, LengthPacker, PackedLengths

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ShardOutput:
    """The objects of one writer: its shards, then the manifest and the index that describe them.

    Args:
        at_once: How many shards a batch is written to at the same time.
        upload_options: How each shard is uploaded; see `Storage.upload`.

    Attributes:
        current: The shard for the next record, if one shard follows the other; None if it has not
            been started.
        finished: The complete shards, by number.
        objects: The set that all objects join, and that its caller commits; None for the output's
            own set.
    """

    def __init__(
        self, target: ShardTarget, storages: Storages, at_once: int = 1, **upload_options: int
    ) -> None:
        self.current: ShardUpload | None = None
        self.finished: dict[int, ShardInfo] = {}
        self.objects: Replacement | None = None
        self._open: dict[int, ShardUpload] = {}
        self._target = target
        stages = bool(target.replaces) and target.has_several_objects
        self._own_objects = Replacement(
            storages, stages=stages, on_staging=partial(warn_of_staging, target.pattern)
        )
        self._at_once = at_once
        self._upload_options = upload_options
        self._lengths: dict[int, PackedLengths] = {}
        self._records = 0

    @property
    def shards(self) -> list[ShardInfo]:
        """The complete shards, in order."""
        return [self.finished[number] for number in sorted(self.finished)]

    async def shard_for(self, size: int, records: int) -> ShardUpload:
        """The shard for `records` more records of `size` bytes together: the current one, or the
        next.
        """
        if self.current is not None and self.is_full(self.current, size, records):
            await self._finish(len(self.finished))
            self.current = None
        if self.current is None:
            self.current = await self._start(len(self.finished))
        return self.current

    def is_full(self, shard: ShardUpload, size: int, records: int) -> bool:
        """Whether such records would exceed the shard's limits; an empty shard takes any."""
        target = self._target
        if not shard.records:
            return False
        if target.max_shard_bytes is None and target.max_shard_records is None:
            return False  # asked for each record, so the usual case is short
        return target.exceeds(shard.size + size, shard.records + records)

    async def write(self, record: bytes) -> None:
        """Writes one record."""
        shard = await self.shard_for(len(record) + FRAME_BYTES, 1)
        if shard.add(record):
            await shard.send_block()

    async def write_block(self, records: list[bytes]) -> None:
        """Writes records that are objects into the current shard; the caller must not change the
        list any more.
        """
        await (await self.shard_for(0, 0)).add_records(records)

    async def write_frame(self, frame: AsyncIterator[Buffer], length: int) -> None:
        """Writes one record of `length` bytes whose frame comes in pieces."""
        await (await self.shard_for(length + FRAME_BYTES, 1)).add_frame(frame, length)

    async def rotate(self) -> ShardInfo | None:
        """Completes the current shard, and returns it; None if it has no records."""
        if self.current is None or not self.current.records:
            return None
        number = len(self.finished)
        await self._finish(number)
        self.current = None
        return self.finished[number]

    async def flush(self) -> None:
        """Sends the records so far of the current shard to the store."""
        if self.current is not None:
            await self.current.flush()

    async def write_batch(self, batch: Frames) -> None:
        """Writes records, each to its shard, about BLOCK_BYTES at a time."""
        shards = self._target.num_shards
        if shards is not None:
            await for_each(partial(self._write_every, batch, shards), range(shards), self._at_once)
            self._records += len(batch)
            return
        first = 0
        while first < len(batch):
            sizes = np.cumsum(batch.lengths[first:] + FRAME_BYTES)
            shard = await self.shard_for(int(sizes[0]), 1)
            last = first + self._target.count_fitting(sizes, shard.size, shard.records)
            await shard.add_batch(batch.window(first, last))
            first = last

    async def close(self) -> None:
        """Completes all shards, and writes the manifest and the index."""
        min_shards = self._target.num_shards or (0 if self._target.numbered else 1)
        missing = set(range(min_shards)) - {*self._open, *self.finished}
        await for_each(self._start, sorted(missing), self._at_once)
        await for_each(self._finish, sorted(self._open), self._at_once)
        # What describes the shards comes last, so that it never names a shard that is not there.
        await self._write_manifest()
        await self._write_index()
        told = await self._find_replaced() if self.objects is None else ()
        replaced = await self._own_objects.commit()
        warn_of(*told)
        for number, shard in self.finished.items():
            if shard.path in replaced:  # the object in place has a version of its own
                self.finished[number] = replace(shard, version=replaced[shard.path].version)

    async def _write_manifest(self) -> None:
        target = self._target
        if target.manifest is not None:
            manifest = Manifest(
                target.manifest, target.pattern, target.compression_type, tuple(self.shards)
            )
            await self._write(manifest.path, manifest.to_json())

    async def _write_index(self) -> None:
        target = self._target
        if target.index is None:
            return
        shards = []
        for number, info in sorted(self.finished.items()):
            described = replace(info, path=portable(target.index, info.path))
            shards.append(IndexedShard(described, self._lengths[number]))
        pattern = portable(target.index, target.pattern)
        await self._write(target.index, encode_index(target.index, shards, pattern))

    async def _find_replaced(self) -> tuple[Leftovers | Described | None, ...]:
        """What is left of earlier runs, and what will be replaced, just before it is."""
        target = self._target
        new = [shard.path for shard in self.shards]
        storages = self._own_objects.storages
        staged = self._own_objects.staged
        described = [
            await find_described(storages, path, new, target.pattern)
            for path in (target.manifest, target.index)
            if path is not None and path in staged
        ]
        return (await find_leftovers(storages, target.pattern, new, staged), *described)

    async def abort(self, cause: BaseException | None = None) -> None:
        """Drops the unfinished shards; an error of that becomes a note on the cause, if there is
        one.
        """
        unfinished = list(self._open.values())
        self._open = {}
        try:
            await run_concurrently(*(shard.abort for shard in unfinished))
        except StreamrecError as error:
            if cause is None:
                raise
            cause.add_note(
                display_text(f"An unfinished shard could not be dropped either: {error}")
            )
        finally:
            await self._own_objects.abort(cause)

    async def _start(self, number: int) -> ShardUpload:
        path = shard_path(self._target.pattern, number)
        deflater = Deflater(self._target.options)
        lengths = None if self._target.index is None else LengthPacker()
        upload = await self._upload(path, **self._upload_options)
        shard = ShardUpload(path, upload, deflater, lengths)
        self._open[number] = shard
        return shard

    async def _finish(self, number: int) -> None:
        shard = self._open[number]
        self.finished[number] = await shard.finish()
        if shard.lengths is not None:
            self._lengths[number] = shard.lengths.finish()
        del self._open[number]
        if self.objects is None:
            self._own_objects.settle(shard.path)

    async def _write_every(self, batch: Frames, shards: int, number: int) -> None:
        """Writes one shard's records of a batch: every `shards`-th record of all batches."""
        records = batch.take(slice((number - self._records) % shards, None, shards))
        ends = np.cumsum(records.lengths)
        first = 0
        while first < len(records):
            # About a block at a time, so that a large batch is not framed in one piece.
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + BLOCK_BYTES, "right")))
            shard = self._open.get(number) or await self._start(number)
            await shard.add_batch(records.window(first, last))
            first = last

    async def _upload(self, path: str, **options: Any) -> Upload:
        return await (self.objects or self._own_objects).upload(
            path, overwrite=self._target.replaces, **options
        )

    async def _write(self, path: str, data: bytes) -> None:
        async with await self._upload(path, describes=True) as upload:
            await upload.write(data)
