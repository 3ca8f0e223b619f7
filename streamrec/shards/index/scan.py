"""One shard and its index: read whole, from its headers, or from an `.idx` file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import numpy as np

from streamrec.errors import CorruptRecordError, ManifestError, ObjectChangedError, StorageError, StreamrecError
from streamrec.shards.index.encoder import IndexedShard
from streamrec.shards.index.headers import lengths_of_file
from streamrec.shards.index.idx_files import lengths_of_idx
from streamrec.shards.manifests.manifest import ShardInfo
from streamrec.shards.manifests.verify import ShardTally
from streamrec.storage import ObjectInfo, Storage
from streamrec.tfrecord import (
    BLOCK_RECORDS,
    DETECT_BYTES,
    HEADER_BYTES,
    LengthPacker,
    PackedLengths,
    detect_compression,
    is_record_header,
    unpack,
)

__all__ = ["scan_file", "scan_idx", "scan_stream"]


async def scan_stream(storage: Storage, path: str) -> IndexedShard:
    """Reads a shard to its end: its records' lengths, and the CRC32C of all its bytes.

    Raises:
        CorruptRecordError, TruncatedShardError: It is damaged.
        ManifestError: It is compressed.
        StorageError: The store failed, and retrying did not help.
    """
    packer = LengthPacker()
    stream = await storage.stream(path)
    tally = ShardTally("", path, packer, stream.info.size)
    try:
        await tally.take_all(stream, ends_at_damage=True)
        info = tally.info(stream.info.version)
    except StreamrecError as error:
        await _refuse_compressed(storage, path, error)
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await stream.aclose()
    return IndexedShard(info, packer.finish())


async def scan_file(storage: Storage, path: str, local: Path) -> IndexedShard:
    """Goes through the headers of a local shard.

    Raises:
        As `scan_stream`; ObjectChangedError: The file was written meanwhile.
    """
    before = await storage.stat(path)
    try:
        lengths = await anyio.to_thread.run_sync(partial(lengths_of_file, local, path))
    except StreamrecError as error:
        await _refuse_compressed(storage, path, error)
        raise
    except OSError as error:
        raise StorageError(f"it cannot be read ({error})", path) from error
    if await storage.stat(path) != before:
        raise ObjectChangedError("this shard was written while it was indexed: index it again", path)
    return _indexed(before, lengths)


async def scan_idx(storage: Storage, path: str, idx_storage: Storage, idx: str) -> IndexedShard:
    """Takes the lengths from a file of tfrecord2idx; of the shard itself its size and its last record's header.

    Raises:
        ManifestError: It is no such file, or it is not that of this shard.
        StorageError: The store failed, and retrying did not help.
    """
    about = await idx_storage.stat(idx)
    data = await idx_storage.read_range(idx, 0, about.size or 0, about.version)
    info = await storage.stat(path)
    lengths = await anyio.to_thread.run_sync(lengths_of_idx, data, idx, path, info.size or 0)
    if lengths.records:
        last = await anyio.to_thread.run_sync(_last_length, lengths)
        start = lengths.end - last - HEADER_BYTES - 4
        header = await storage.read_range(path, start, start + HEADER_BYTES, info.version)
        if not is_record_header(header) or int.from_bytes(header[:8], "little") != last:
            raise ManifestError(
                f"{idx}: {path} has no record of {last:,} bytes at byte {start:,}: this is the file of another shard, "
                "or the shard is compressed or was written since; make it again, or index the shard itself"
            )
    return _indexed(info, lengths)


def _indexed(info: ObjectInfo, lengths: PackedLengths) -> IndexedShard:
    return IndexedShard(ShardInfo(info.path, lengths.records, info.size or 0, None, version=info.version), lengths)


def _last_length(lengths: PackedLengths) -> int:
    """The last record's length."""
    count = (lengths.records - 1) % BLOCK_RECORDS + 1
    block = lengths.blocks[-1:]
    size = (count * int(block["width"][0]) + 7) // 8
    data = lengths.data[len(lengths.data) - size :]
    return int(unpack([data], block, np.array([count]))[-1])


async def _refuse_compressed(storage: Storage, path: str, error: StreamrecError) -> None:
    """Where a shard's first bytes are damaged because they are compressed, says so."""
    if isinstance(error, CorruptRecordError) and not error.offset:
        kind = detect_compression(await storage.read_range(path, 0, DETECT_BYTES))
        if kind:
            raise ManifestError(
                f"{path}: this shard is compressed ({kind}), and no record of it can be read from the middle, so it "
                "has no index: write the data set anew without compression: streamrec reshard --compression none"
            ) from error
