"""The Datasource: read tasks of TFRecord shards, whose blocks are Arrow tables.

Rules:
- The driver lists, and reads the manifest and a sample, once. A task opens only what it reads.
- Read tasks are ranges of bytes of shards, so that many workers read one large shard. With a manifest or an index they
  are ranges of records, and their number is known before they run.
- A task's retries, losses and bytes are counters of Ray's metrics; what it had to try again or leave out is a
  warning in its log too, which Ray shows at the driver.
- An error names the shard, the record and the byte. It is the library's own error, as cause of Ray's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import ray
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata
from ray.util.metrics import Counter

from streamrec import TFRecordDataset, bridge
from streamrec.display import display_name
from streamrec.errors import FeatureError
from streamrec.example import FeatureSummary, Schema, infer_features
from streamrec.example.arrow import check_names, names_of_text
from streamrec.interchange import join_schemas, kind_of
from streamrec.interchange.arrow import NullableParser
from streamrec.pipeline.arrow_stream import arrow_chain
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.sources.shards.distribute import Portions
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.pipeline.telemetry.stats import Stats
from streamrec.shards import (
    Filenames,
    Portion,
    ShardInfo,
    ShardReader,
    assign_records,
    assign_shards,
    find_in_manifest,
    list_shards,
    sizes_of,
)
from streamrec.shards.assignment import ShardSize
from streamrec.storage import ObjectInfo, Storages, is_url

logger = logging.getLogger("streamrec")

COUNTERS: Final = {
    "streamrec_read_bytes": "Bytes of TFRecord shards that were read.",
    "streamrec_read_retries": "Requests that failed and were made again.",
    "streamrec_read_losses": "Damaged places of shards that were left out.",
}
"""In Ray's metrics."""

BATCH_BYTES: Final = 16 << 20
"""About how many bytes of records become one block of Arrow columns."""


@dataclass(frozen=True)
class ShardSurvey:
    """What is known of the shards before they are read.

    Attributes:
        sizes: Their URLs and sizes.
        known: What the manifest or the index says of them; None without one.
        manifest: Its URL.
        rows: How many records become one block.
        features: What is parsed, as the caller says.
        inferred: What the sample shows of each feature, where the caller says nothing.
    """

    sizes: tuple[ShardSize, ...]
    known: tuple[ShardInfo, ...] | None
    manifest: str | None
    rows: int
    features: Mapping[str, Any] | None
    inferred: tuple[FeatureSummary, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.size for shard in self.sizes)


class TFRecordDatasource(Datasource):  # type: ignore[misc, unused-ignore]
    """The Examples of TFRecord shards as a source of Ray Data; arguments as for `read_tfrecords`."""

    def __init__(
        self,
        paths: Filenames,
        features: Mapping[str, Any] | None = None,
        *,
        text: Iterable[str] = (),
        manifest: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **reading: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        source = TFRecordDataset(paths, storage_options=storage_options, **reading).chain.source
        assert isinstance(source, Shards)
        self._shards = source
        self._survey = bridge.run(look, self._shards, manifest and absolute_path(manifest), features)
        self._text = names_of_text(text)
        check_names(self._text, features or [item.name for item in self._survey.inferred])

    def get_name(self) -> str:
        """What Ray calls the read tasks."""
        return "TFRecord"

    def estimate_inmemory_data_size(self) -> int | None:
        """Bytes of all shards: about what their columns take."""
        return self._survey.nbytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """About as many tasks as Ray asks for."""
        tasks = []
        for portions, records, nbytes in bridge.run(parts_of, self._shards, self._survey, parallelism):
            paths = tuple(dict.fromkeys(portion.path for portion in portions))
            about = BlockMetadata(num_rows=records, size_bytes=nbytes, input_files=paths, exec_stats=None)
            read = partial(tables, replace(self._shards, filenames=paths), portions, self._survey, self._text)
            tasks.append(ReadTask(read, about, per_task_row_limit=per_task_row_limit))
        return tasks


def absolute_path(path: str) -> str:
    """A path as workers understand it, whose working directory is another one: a local path becomes absolute."""
    return path if is_url(path) else os.path.abspath(os.path.expanduser(path))


async def look(shards: Shards, manifest: str | None, features: Mapping[str, Any] | None) -> ShardSurvey:
    """Lists the shards, reads the manifest, and the first records of some shards."""
    stores = shards.stores
    async with Storages(stores.storage_options, filesystem=stores.filesystem, retry=stores.retry) as storages:
        listing = await list_shards(storages, shards.filenames)
        paths = list(map(absolute_path, listing.paths))
        known = {absolute_path(path): info for path, info in listing.known.items()}
        described = None if manifest is None else tuple(await find_in_manifest(storages, manifest, paths, known))
        if described is not None:
            known = {shard.path: ObjectInfo(shard.path, shard.bytes, shard.version) for shard in described}
        sizes = await sizes_of(storages, paths, known)
        sample = await first_records(storages, shards, sizes)
    lengths = [len(record) for records in sample.values() for record in records]
    rows = max(1, min(1 << 16, int(BATCH_BYTES / max(sum(lengths) / len(lengths), 1.0)))) if lengths else 1 << 16
    inferred = infer_from(sample) if features is None else ()
    return ShardSurvey(tuple(sizes), described, manifest, rows, features, inferred)


def infer_from(sample: Mapping[str, list[bytes]]) -> tuple[FeatureSummary, ...]:
    """What records of several shards show of each feature."""
    schema = Schema(0, ())
    for path, records in sample.items():
        try:
            for number, record in enumerate(records):
                if kind_of(record) == "sequence_example":
                    reason = "a SequenceExample, of which only the context has columns: give features"
                    raise FeatureError(reason, None, number)
            schema = join_schemas(schema, infer_features(records))
        except FeatureError as error:
            raise FeatureError(f"{error.reason} (in {display_name(path)})", error.feature, error.record) from error
    return schema.summaries


async def first_records(storages: Storages, shards: Shards, sizes: Sequence[ShardSize]) -> dict[str, list[bytes]]:
    """Records from the beginnings of up to 4 shards, by path: up to 1,000, fewer where they are long."""
    found: dict[str, list[bytes]] = {}
    options = replace(shards.options, block_bytes=1 << 16, on_loss=None)
    for shard in sizes[:: max(1, len(sizes) // 4)][:4]:
        storage = await storages.at(shard.path)
        made = await ShardReader.open(storage, shard.path, options, expected=shard.expected)
        async with aclosing(made) as reader:
            async for record in reader:
                taken = found.setdefault(shard.path, [])
                taken.append(record)
                if len(taken) == 250 or sum(map(len, taken)) >= 4 << 20:
                    break
    return found


async def parts_of(shards: Shards, survey: ShardSurvey, count: int) -> list[tuple[list[Portion], int | None, int]]:
    """Assigns all records to about `count` tasks: what each reads, how many records that is, and about how many bytes.

    With a manifest, tasks have equally many records, and begin at its marks; else about equally many bytes.
    """
    if survey.known is not None:
        total = sum(shard.records for shard in survey.known)
        count = max(1, min(count, total))
        assigned = [assign_records(survey.known, count, reader, None, survey.manifest) for reader in range(count)]
        bounds = [total * reader // count for reader in range(count + 1)]
        return [
            (own, bounds[reader + 1] - bounds[reader], survey.nbytes // count) for reader, own in enumerate(assigned)
        ]
    stores = shards.stores
    async with Storages(stores.storage_options, filesystem=stores.filesystem, retry=stores.retry) as storages:
        plan = await assign_shards(storages, survey.sizes, count, shards.options.compression_type)
    size = {shard.path: shard.size for shard in survey.sizes}
    return [(own, None, sum(portion_bytes(portion, size[portion.path]) for portion in own)) for own in plan if own]


def portion_bytes(portion: Portion, size: int) -> int:
    """About how many bytes of a shard a portion has."""
    if portion.piece is None:
        return size
    return (size if portion.piece.end is None else portion.piece.end) - portion.piece.start


def tables(shards: Shards, portions: list[Portion], survey: ShardSurvey, text: tuple[str, ...]) -> Iterator[Any]:
    """The columns of portions of these shards, as Arrow tables; this runs on a worker."""
    records = Dataset(Chain(Portions(shards, tuple(portions)))).batch(survey.rows)
    if survey.features is None:
        dataset = records.map(NullableParser(survey.inferred, text))
    else:
        dataset = Dataset(arrow_chain(records.parse_example(survey.features).chain, text))
    with dataset.iterate() as run:
        try:
            for batch in run:
                yield pa.Table.from_batches([pa.record_batch(batch)])
        finally:
            report(shards.filenames, run.stats())


def report(paths: Sequence[str], stats: Stats) -> None:
    """Tells Ray what happened to a task's shards."""
    stores = stats.storage.backends.values()
    retries = sum(sum(store.retries.values()) for store in stores)
    losses, lost = sum(store.losses for store in stores), sum(store.lost_bytes for store in stores)
    values = sum(store.bytes for store in stores), retries, losses
    for (name, meaning), value in zip(COUNTERS.items(), values, strict=True):
        if value:
            Counter(name, meaning).inc(value)
    if retries or losses:
        more = f" and {len(paths) - 1} more shards" if len(paths) > 1 else ""
        message = "%s%s: %d requests made again, %d damaged places left out (%d bytes)"
        logger.warning(message, paths[0], more, retries, losses, lost)


def read_tfrecords(
    paths: Filenames,
    features: Mapping[str, Any] | None = None,
    *,
    text: Iterable[str] = (),
    manifest: str | None = None,
    compression_type: str | None = None,
    verify: bool = True,
    on_error: str = "raise",
    max_skipped: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
) -> ray.data.Dataset:
    """The Examples of TFRecord shards as a Ray Dataset of Arrow columns.

    Read tasks are ranges of bytes of the shards, so that one large shard is read by many workers. Compressed shards
    cannot be divided.

    Args:
        paths: URLs, paths, patterns, as for `TFRecordDataset`; workers must reach them too.
        features: What is parsed, as for `parse_example`. None: all features that the first records of up to 4 shards
            hold. A missing feature is null then. A feature of which these records have up to one value is a scalar, one
            of which they always have k a fixed-size list, any other a list; a record with another number of values, or
            of another kind, is an error.
        text: Names of features whose byte strings are text: they become large_utf8 instead of large_binary.
        manifest: The URL of a manifest or index of these shards: tasks then have equally many records, and Ray knows
            their number before they run.
        compression_type: None to detect; "", "GZIP", "ZLIB" or "ZSTD".
        verify: Check each record's CRC32C.
        on_error: What is done about damage: "raise", "skip_record", "resync" or "skip_shard"; see `open_shard`.
        max_skipped: How many losses of one shard are borne.
        storage_options: Passed to the fsspec filesystem (credentials, endpoint); sent to the workers.
        concurrency: How many tasks run at the same time; None: as Ray decides.
        override_num_blocks: How many read tasks there are; None: as Ray decides.
        ray_remote_args: Passed to `ray.remote` of the tasks.

    Raises:
        NotFoundError, StorageError: The shards cannot be listed or read.
        ManifestError: The manifest does not know a shard, or not as it is.
        FeatureError: `features` is None, and the records are not Examples, or hold a feature of two kinds; or `text`
            names a feature that is not read.
        StreamrecError: When it runs: damage, or a record that does not fit.
    """
    source = TFRecordDatasource(
        paths,
        features,
        text=text,
        manifest=manifest,
        storage_options=storage_options,
        compression_type=compression_type,
        verify=verify,
        on_error=on_error,
        max_skipped=max_skipped,
    )
    dataset: ray.data.Dataset = ray.data.read_datasource(
        source,
        concurrency=concurrency,
        override_num_blocks=override_num_blocks,
        ray_remote_args=dict(ray_remote_args or {}),
    )
    return dataset
