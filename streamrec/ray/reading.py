"""The Datasource: read tasks of TFRecord shards, whose blocks are Arrow tables.

Rules:
- The driver lists, and reads the manifest and a sample, once. A task opens only what it reads.
- A task's retries, losses and bytes are counters of Ray's metrics; what it had to try again or leave out is a
  warning in its log too, which Ray shows at the driver.
- An error names the shard, the record and the byte. It is the library's own error, as cause of Ray's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
import ray
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata
from ray.util.metrics import Counter

from streamrec import TFRecordDataset, bridge
from streamrec.example.arrow import check_names, names_of_text
from streamrec.interchange.arrow import NullableParser
from streamrec.pipeline.arrow_stream import arrow_chain
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.sources.shards.distribute import Portions
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.pipeline.telemetry.stats import Stats
from streamrec.ray.planning import Part, Survey, look, parts_of, understood
from streamrec.shards import Filenames

__all__ = ["TFRecordDatasource", "read_tfrecords"]

logger = logging.getLogger("streamrec")

COUNTERS: Final = {
    "streamrec_read_bytes": "Bytes of TFRecord shards that were read.",
    "streamrec_read_retries": "Requests that failed and were made again.",
    "streamrec_read_losses": "Damaged places of shards that were left out.",
}
"""In Ray's metrics."""


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
        self._survey = bridge.run(look, self._shards, manifest and understood(manifest), features)
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
        """About so many tasks."""
        parts = bridge.run(parts_of, self._shards, self._survey, parallelism)
        return [self._task(part, per_task_row_limit) for part in parts]

    def _task(self, part: Part, limit: int | None) -> ReadTask:
        read = partial(tables, self._shards, part, self._survey, self._text)
        about = BlockMetadata(
            num_rows=part.records, size_bytes=part.nbytes, input_files=tuple(part.paths), exec_stats=None
        )
        return ReadTask(read, about, per_task_row_limit=limit)


def tables(shards: Shards, part: Part, survey: Survey, text: tuple[str, ...]) -> Iterator[Any]:
    """The columns of a part, as Arrow tables; this runs on a worker."""
    names = Shards(
        tuple(part.paths), shards.plan, shards.options, shards.storage_options, shards.filesystem, shards.retry
    )
    records = Dataset(Chain(Portions(names, part.portions))).batch(survey.rows)
    if survey.features is None:
        dataset = records.map(NullableParser(survey.inferred, text))
    else:
        dataset = Dataset(arrow_chain(records.parse_example(survey.features).chain, text))
    with dataset.iterate() as run:
        try:
            for batch in run:
                yield pa.Table.from_batches([pa.record_batch(batch)])
        finally:
            report(part, run.stats())


def report(part: Part, stats: Stats) -> None:
    """Tells Ray what happened to a part."""
    stores = stats.storage.backends.values()
    retries = sum(sum(store.retries.values()) for store in stores)
    losses, lost = sum(store.losses for store in stores), sum(store.lost_bytes for store in stores)
    values = sum(store.bytes for store in stores), retries, losses
    for (name, meaning), value in zip(COUNTERS.items(), values, strict=True):
        if value:
            Counter(name, meaning).inc(value)
    if retries or losses:
        more = f" and {len(part.paths) - 1} more shards" if len(part.paths) > 1 else ""
        told = "%s%s: %d requests made again, %d damaged places left out (%d bytes)"
        logger.warning(told, part.paths[0], more, retries, losses, lost)


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
        FeatureError: `features` is None, and the records are no Examples, or hold a feature of two kinds; or `text`
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
