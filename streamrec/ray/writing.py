"""The Datasink: each write task writes one shard.

The driver writes the manifest when all are complete.

Rules:
- A shard appears complete or not at all. A task that Ray runs again writes the same name again.
- A shard's number is its task's. Ray gives a task at least `shard_bytes` of rows, if there are that
  many.
- The manifest comes last: a run without one has failed.
- Existing objects stay until all new ones are complete: a task whose name is taken writes under a
  hidden name, and the driver puts all in place (`storage/replacement.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any, Final

import ray
from ray.data import Datasink
from ray.data.block import BlockAccessor

from streamrec import bridge
from streamrec.display import display_name, logger
from streamrec.example.arrow_rows import examples_of
from streamrec.example.changes import Changes
from streamrec.ray.reading import absolute_path
from streamrec.shards import Manifest, ShardInfo, ShardWriter
from streamrec.shards.patterns import fill_total, is_numbered, list_numbered, shard_path
from streamrec.storage import Existing, Replacement, RetryPolicy, Storages, hidden_name
from streamrec.tfrecord import TFRecordOptions

SHARD_BYTES: Final = 200_000_000


class TFRecordDatasink(Datasink[tuple[str, ShardInfo, Changes]]):  # type: ignore[misc, unused-ignore]
    """TFRecord shards as a target of Ray Data; arguments as for `write_tfrecords`."""

    def __init__(
        self,
        path: str,
        options: TFRecordOptions | str | None = None,
        *,
        shard_bytes: int = SHARD_BYTES,
        manifest: str | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        pattern = path
        if not is_numbered(path):
            pattern = f"{path.rstrip('/')}/part-{{shard:05d}}.tfrecord"
        self._pattern = absolute_path(fill_total(pattern, None))
        self._options = TFRecordOptions.of(options)
        self._shard_bytes = shard_bytes
        self._directory = self._pattern[: self._pattern.rfind("/") + 1]
        self._manifest = absolute_path(manifest or f"{self._directory}manifest.json")
        self._overwrite = overwrite
        self._token = token_hex(8)  # names the hidden objects of this run
        self._storage_options = dict(storage_options or {})

    def get_name(self) -> str:
        """Ray's name for the write tasks."""
        return "TFRecord"

    @property
    def min_bytes_per_write(self) -> int:
        """The least number of bytes for a task, if there are that many."""
        return self._shard_bytes

    def write(self, blocks: Iterable[Any], ctx: Any) -> tuple[str, ShardInfo, Changes]:
        """Writes one shard on a worker.

        Returns its final URL, its description, and the changes of its values.
        """
        changes = Changes()
        path = shard_path(self._pattern, ctx.task_idx)
        target = bridge.run(self._find_target, path) if self._overwrite else path
        writer = ShardWriter(target, self._options, storage_options=self._storage_options)
        bridge.run(writer.__aenter__)
        try:
            for block in blocks:
                for batch in BlockAccessor.for_block(block).to_arrow().to_batches():
                    bridge.run(writer.write_batch, examples_of(batch, {}, changes))
        except BaseException:
            bridge.run(writer.abort)
            raise
        bridge.run(writer.close)
        return path, writer.shards[0], changes

    def on_write_start(self, schema: Any = None) -> None:
        """Refuses to write if such shards exist, unless they may be overwritten."""
        if not self._overwrite:
            bridge.run(self._refuse_existing)

    def on_write_complete(self, write_result: Any) -> None:
        """Puts all objects in place, writes the manifest, and logs which values were narrowed."""
        changes = Changes()
        for _, _, more in write_result.write_returns:
            changes.update(more)
        if text := str(changes):
            logger.warning("%s: %s", self._pattern, text)
        written = sorted((path, shard) for path, shard, _ in write_result.write_returns)
        bridge.run(self._put_in_place, written)

    def on_write_failed(self, error: Exception) -> None:
        """Removes the hidden objects of this run."""
        bridge.run(self._remove_staged)

    async def _find_target(self, path: str) -> str:
        """The URL to write to.

        It is `path`, or a hidden name in the directory of the shard that it replaces.
        """
        async with Storages(self._storage_options) as storages:
            existing, final = await (await storages.at(path)).look_up(path)
        is_there = existing is not Existing.ABSENT
        return hidden_name(final, "new-", self._token) if is_there else path

    async def _remove_staged(self) -> None:
        async with Storages(self._storage_options, retry=RetryPolicy(patience=30)) as storages:
            storage = await storages.at(self._directory)
            async for info in storage.list(f"{self._directory}.", hidden=True):
                if info.path.endswith(f".streamrec-new-{self._token}"):
                    await storage.remove(info.path)

    async def _refuse_existing(self) -> None:
        async with Storages(self._storage_options) as storages:
            async for info in list_numbered(storages, self._pattern):
                name = display_name(info.path)
                raise FileExistsError(
                    f"{name} already exists: choose another path, or pass overwrite=True"
                )

    async def _put_in_place(self, written: Sequence[tuple[str, ShardInfo]]) -> None:
        """Renames the hidden shards, and writes the manifest."""
        shards = tuple(replace(shard, path=path) for path, shard in written)
        manifest = Manifest(self._manifest, self._pattern, self._options.compression_type, shards)  # type: ignore[arg-type]
        async with Storages(self._storage_options) as storages, Replacement(storages) as objects:
            for path, shard in written:
                await objects.adopt(path, shard.path)
            async with await objects.upload(self._manifest, describes=True) as upload:
                await upload.write(manifest.to_json())


def write_tfrecords(
    dataset: ray.data.Dataset,
    path: str,
    options: TFRecordOptions | str | None = None,
    *,
    shard_bytes: int = SHARD_BYTES,
    manifest: str | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
) -> None:
    """Writes a Ray Dataset's rows as Examples, to TFRecord shards and a manifest.

    Args:
        dataset: The rows; columns are numbers, strings, lists of them, or tensors. null is a
            missing feature.
        path: A directory, or the shards' names with `{shard:05d}` for the number of the write task.
        options: Compression; None for none.
        shard_bytes: The least number of bytes of columns for a shard, if there are that many.
        manifest: Its URL; None for `manifest.json` in the shards' directory.
        overwrite: Whether existing shards of these names are replaced, when all new ones are
            complete.
        storage_options: Passed to the fsspec filesystem; sent to the workers.
        concurrency: How many tasks run at the same time; None: Ray decides.
        ray_remote_args: Passed to `ray.remote` of the tasks.

    Raises:
        FileExistsError: Shards of these names exist, and `overwrite` is False.
        FeatureError: An Example cannot hold a value of a column.
        StorageError: The store failed. Complete shards stay; no manifest is written.
    """
    sink = TFRecordDatasink(
        path,
        options,
        shard_bytes=shard_bytes,
        manifest=manifest,
        overwrite=overwrite,
        storage_options=storage_options,
    )
    dataset.write_datasink(
        sink, concurrency=concurrency, ray_remote_args=dict(ray_remote_args or {})
    )
