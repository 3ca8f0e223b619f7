"""The Datasource: read tasks of TFRecord shards, whose blocks are Arrow tables.

Rules:
- The driver lists the shards, and reads the manifest and a sample, once. A task opens only the
  shards that it reads.
- Read tasks are byte ranges of shards, so that many workers read one large shard. With a manifest
  or an index they are ranges of records, and their number is known before they run.
- Ray's metrics count each task's retries, losses and bytes. A task with retries or losses also logs
  a warning, which Ray shows at the driver.
- An error names the shard, the record and the byte. It is the library's own error, as the cause of
  Ray's.
"""

from __future__ import annotations

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
from streamrec.display import display_name, logger
from streamrec.errors import FeatureError
from streamrec.example import FeatureSummary, Schema, infer_features, kind_of
from streamrec.example.arrow import check_names, names_of_text
from streamrec.example.arrow_rows import NullableParser
from streamrec.example.schema import join_schemas
from streamrec.pipeline.arrow_stream import arrow_chain
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.iterators import DatasetIterator
from streamrec.pipeline.loading import LoaderIterator
from streamrec.pipeline.sources.shards.distribute import Portions, load_of
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.pipeline.telemetry.stats import Stats
from streamrec.pipeline.watching import nothing_yet
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

COUNTERS: Final = {
    "streamrec_read_bytes": "Bytes of TFRecord shards that were read.",
    "streamrec_read_retries": "Requests that failed and were repeated.",
    "streamrec_read_losses": "Damaged places of shards that were skipped.",
}
"""The names and descriptions of the counters in Ray's metrics."""

BATCH_BYTES: Final = 16 << 20
"""The approximate size of the records of one block of Arrow columns."""


@dataclass(frozen=True, kw_only=True)
class ShardSurvey:
    """The driver's knowledge of the shards.

    Attributes:
        sizes: Their URLs and sizes.
        known: Their entries in the manifest or the index; None without one.
        manifest: The manifest's URL.
        rows: Records for each block.
        features: The features that the caller asks for; None for the inferred ones.
        inferred: A summary of each feature in the sample, where `features` is None.
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
    """The Examples of TFRecord shards as a source of Ray Data.

    Arguments as for `read_tfrecords`.
    """

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
        self._survey = bridge.run(
            survey_shards, source, manifest and absolute_path(manifest), features
        )
        self._text = names_of_text(text)
        check_names(self._text, features or [item.name for item in self._survey.inferred])

    def get_name(self) -> str:
        """Ray's name for the read tasks."""
        return "TFRecord"

    def estimate_inmemory_data_size(self) -> int | None:
        """Bytes of all shards: about what their columns take."""
        return self._survey.nbytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """About as many tasks as Ray asks for."""
        tasks = []
        for portions, records, nbytes in bridge.run(
            plan_tasks, self._shards, self._survey, parallelism
        ):
            paths = tuple(dict.fromkeys(portion.path for portion in portions))
            metadata = BlockMetadata(
                num_rows=records, size_bytes=nbytes, input_files=paths, exec_stats=None
            )
            read = partial(
                read_tables,
                replace(self._shards, filenames=paths),
                portions,
                self._survey,
                self._text,
            )
            tasks.append(ReadTask(read, metadata, per_task_row_limit=per_task_row_limit))
        return tasks


def absolute_path(path: str) -> str:
    """Makes a local path absolute, because workers have another working directory."""
    return path if is_url(path) else os.path.abspath(os.path.expanduser(path))


def open_storages(shards: Shards) -> Storages:
    """Opens the stores of the shards, with the options that the caller gave."""
    stores = shards.stores
    return Storages(stores.storage_options, filesystem=stores.filesystem, retry=stores.retry)


async def survey_shards(
    shards: Shards, manifest: str | None, features: Mapping[str, Any] | None
) -> ShardSurvey:
    """Lists the shards, and reads the manifest and the first records of some shards."""
    async with open_storages(shards) as storages:
        listing = await list_shards(storages, shards.filenames)
        paths = list(map(absolute_path, listing.paths))
        known = {absolute_path(path): info for path, info in listing.known.items()}
        described = None
        if manifest is not None:
            described = tuple(await find_in_manifest(storages, manifest, paths, known))
            # The manifest's sizes and versions spare a request for each shard.
            known = {
                shard.path: ObjectInfo(shard.path, shard.bytes, shard.version)
                for shard in described
            }
        sizes = await sizes_of(storages, paths, known)
        sample = await first_records(storages, shards, sizes)
    lengths = [len(record) for records in sample.values() for record in records]
    rows = 1 << 16
    if lengths:
        record_bytes = max(sum(lengths) / len(lengths), 1.0)
        rows = max(1, min(rows, int(BATCH_BYTES / record_bytes)))
    return ShardSurvey(
        sizes=tuple(sizes),
        known=described,
        manifest=manifest,
        rows=rows,
        features=features,
        inferred=infer_from(sample) if features is None else (),
    )


def infer_from(sample: Mapping[str, list[bytes]]) -> tuple[FeatureSummary, ...]:
    """A summary of each feature in the sample records of several shards."""
    schema = Schema(0, ())
    for path, records in sample.items():
        try:
            for number, record in enumerate(records):
                if kind_of(record) == "sequence_example":
                    reason = (
                        "a SequenceExample, of which only the context has columns: give features"
                    )
                    raise FeatureError(reason, None, number)
            schema = join_schemas(schema, infer_features(records))
        except FeatureError as error:
            raise FeatureError(
                f"{error.reason} (in {display_name(path)})", error.feature, error.record
            ) from error
    return schema.summaries


async def first_records(
    storages: Storages, shards: Shards, sizes: Sequence[ShardSize]
) -> dict[str, list[bytes]]:
    """The first records of up to 4 shards, by path: up to 250 records or about 4 MiB of each."""
    sample: dict[str, list[bytes]] = {}
    options = replace(shards.options, block_bytes=1 << 16, on_loss=None)
    for shard in sizes[:: max(1, len(sizes) // 4)][:4]:
        storage = await storages.at(shard.path)
        async with aclosing(
            await ShardReader.open(storage, shard.path, options, expected=shard.expected)
        ) as reader:
            async for record in reader:
                records = sample.setdefault(shard.path, [])
                records.append(record)
                if len(records) == 250 or sum(map(len, records)) >= 4 << 20:
                    break
    return sample


async def plan_tasks(
    shards: Shards, survey: ShardSurvey, count: int
) -> list[tuple[list[Portion], int | None, int]]:
    """Assigns all records to about `count` tasks.

    With a manifest, tasks have equal numbers of records, and begin at its marks; else they have
    about equal numbers of bytes.

    Returns:
        For each task its portions, its number of records if that is known, and about its number of
        bytes.
    """
    if survey.known is not None:
        total = sum(shard.records for shard in survey.known)
        count = max(1, min(count, total))
        bounds = [total * task // count for task in range(count + 1)]
        return [
            (
                assign_records(survey.known, count, task, None, survey.manifest),
                bounds[task + 1] - bounds[task],
                survey.nbytes // count,
            )
            for task in range(count)
        ]
    async with open_storages(shards) as storages:
        plan = await assign_shards(storages, survey.sizes, count, shards.options.compression_type)
    sizes = {shard.path: shard.size for shard in survey.sizes}
    loads = [
        sum(load_of(portion, sizes[portion.path]) for portion in portions) for portions in plan
    ]
    return [(portions, None, load) for portions, load in zip(plan, loads, strict=True) if portions]


def read_tables(
    shards: Shards, portions: list[Portion], survey: ShardSurvey, text: tuple[str, ...]
) -> Iterator[Any]:
    """The columns of portions of these shards, as Arrow tables; runs on a worker."""
    records = Dataset(Chain(Portions(shards, tuple(portions)))).batch(survey.rows)
    if survey.features is None:
        dataset = records.map(NullableParser(survey.inferred, text))
    else:
        dataset = Dataset(arrow_chain(records.parse_example(survey.features).chain, text))
    return LoaderIterator(
        lambda: CountedRun(shards.filenames, dataset.iterate()),
        lambda batch: pa.Table.from_batches([pa.record_batch(batch)]),
        partial(nothing_yet, dataset),
    )


class CountedRun:
    """The run of a task. Its counters are reported when it ends."""

    def __init__(self, paths: Sequence[str], run: DatasetIterator[Any]) -> None:
        self._paths = paths
        self._run = run
        self._is_reported = False

    def stats(self) -> Stats:
        """The run's statistics."""
        return self._run.stats()

    def __next__(self) -> Any:
        return next(self._run)

    def close(self) -> None:
        """Ends the run."""
        try:
            if not self._is_reported:
                self._is_reported = True
                report_counters(self._paths, self._run.stats())
        finally:
            self._run.close()


def report_counters(paths: Sequence[str], stats: Stats) -> None:
    """Adds a task's counters to Ray's metrics, and logs its retries and losses."""
    stores = stats.storage.backends.values()
    retries = sum(sum(store.retries.values()) for store in stores)
    losses = sum(store.losses for store in stores)
    lost = sum(store.lost_bytes for store in stores)
    values = sum(store.bytes for store in stores), retries, losses
    for (name, meaning), value in zip(COUNTERS.items(), values, strict=True):
        if value:
            Counter(name, meaning).inc(value)
    if retries or losses:
        more = f" and {len(paths) - 1} more shards" if len(paths) > 1 else ""
        message = "%s%s: repeated %d requests; skipped %d damaged places (%d bytes)"
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
    """Reads the Examples of TFRecord shards as a Ray Dataset of Arrow columns.

    Read tasks are byte ranges of the shards, so that many workers read one large shard. Compressed
    shards cannot be divided.

    Args:
        paths: URLs, paths, patterns, as for `TFRecordDataset`; workers must reach them too.
        features: The features to parse, as for `parse_example`. None: all features in the first
            records of up to 4 shards. Then a missing feature is null. A feature with at most one
            value in each of these records becomes a scalar, one with always k values a fixed-size
            list, any other a list; a record with another number of values or another kind is an
            error.
        text: Names of features whose byte strings are text: they become large_utf8 instead of
            large_binary.
        manifest: The URL of a manifest or index of these shards: tasks then have equal numbers of
            records, which Ray knows before they run.
        compression_type: None to detect; "", "GZIP", "ZLIB" or "ZSTD".
        verify: Check each record's CRC32C.
        on_error: How damage is handled: "raise", "skip_record", "resync" or "skip_shard"; see
            `open_shard`.
        max_skipped: How many losses of one shard are tolerated.
        storage_options: Passed to the fsspec filesystem (credentials, endpoint); sent to the
            workers.
        concurrency: How many tasks run at the same time; None: Ray decides.
        override_num_blocks: The number of read tasks; None: Ray decides.
        ray_remote_args: Passed to `ray.remote` of the tasks.

    Raises:
        NotFoundError, StorageError: The shards cannot be listed or read.
        ManifestError: The manifest does not name a shard, or differs from it.
        FeatureError: `features` is None, and the records are not Examples, or a feature has two
            kinds; or `text` names a feature that is not read.
        StreamrecError: When the Dataset runs: damage, or a record that does not have the expected
            features.
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
