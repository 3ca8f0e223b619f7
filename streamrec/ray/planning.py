"""What a driver learns of shards once, and how it deals them to read tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from streamrec.display import display_name
from streamrec.errors import FeatureError
from streamrec.example import FeatureSummary, infer_features
from streamrec.interchange import combined
from streamrec.interchange.features import kind_of
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.shards import (
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

__all__ = ["BATCH_BYTES", "Part", "Survey", "look", "parts_of", "understood"]

SAMPLED_SHARDS: Final = 4
SAMPLED_RECORDS: Final = 250
SAMPLED_BYTES: Final = 4 << 20
"""Of each shard."""

BATCH_BYTES: Final = 16 << 20
"""About how many bytes of records become one block of Arrow columns."""

MOST_ROWS: Final = 1 << 16


@dataclass(frozen=True)
class Survey:
    """What is known of the shards before they are read.

    Attributes:
        sizes: Their URLs and sizes.
        told: What the manifest or the index says of them; None without one.
        manifest: Its URL.
        rows: How many records become one block.
        features: What is parsed, as the caller says.
        inferred: What the sample shows of each feature, where the caller says nothing.
    """

    sizes: tuple[ShardSize, ...]
    told: tuple[ShardInfo, ...] | None
    manifest: str | None
    rows: int
    features: Mapping[str, Any] | None
    inferred: tuple[FeatureSummary, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.size for shard in self.sizes)


@dataclass(frozen=True)
class Part:
    """What one task reads.

    Attributes:
        portions: Ranges of shards.
        records: How many records these hold; None where nobody knows.
        nbytes: About how many bytes.
    """

    portions: tuple[Portion, ...]
    records: int | None
    nbytes: int

    @property
    def paths(self) -> list[str]:
        """The shards."""
        return list(dict.fromkeys(portion.path for portion in self.portions))


def understood(path: str) -> str:
    """A path as workers understand it, whose working directory is another one: a local path becomes absolute."""
    return path if is_url(path) else os.path.abspath(os.path.expanduser(path))


async def look(shards: Shards, manifest: str | None, features: Mapping[str, Any] | None) -> Survey:
    """Lists the shards, reads the manifest, and the first records of some shards.

    Raises:
        StorageError: The shards cannot be listed or read.
        ManifestError: The manifest does not know a shard, or not as it is.
        FeatureError: No features are given, and the records are no Examples, or a feature has two kinds.
    """
    async with Storages(shards.storage_options, filesystem=shards.filesystem, retry=shards.retry) as storages:
        listing = await list_shards(storages, shards.filenames)
        paths = list(map(understood, listing.paths))
        known = {understood(path): info for path, info in listing.known.items()}
        told = None if manifest is None else tuple(await find_in_manifest(storages, manifest, paths, known))
        if told is not None:
            known = {shard.path: ObjectInfo(shard.path, shard.bytes, shard.version) for shard in told}
        sizes = await sizes_of(storages, paths, known)
        sample = await first_records(storages, shards, sizes)
    lengths = [len(record) for records in sample.values() for record in records]
    rows = max(1, min(MOST_ROWS, int(BATCH_BYTES / max(sum(lengths) / len(lengths), 1.0)))) if lengths else MOST_ROWS
    return Survey(tuple(sizes), told, manifest, rows, features, inferred(sample) if features is None else ())


def inferred(sample: Mapping[str, list[bytes]]) -> tuple[FeatureSummary, ...]:
    """What records of several shards show of each feature.

    Raises:
        FeatureError: They are no Examples, or a feature has two kinds; says in which shard.
    """
    schema = combined(())
    for path, records in sample.items():
        try:
            for number, record in enumerate(records):
                if kind_of(record) == "sequence_example":
                    reason = "a SequenceExample, of which only the context has columns: give features"
                    raise FeatureError(reason, None, number)
            schema = combined((schema, infer_features(records)))
        except FeatureError as error:
            raise FeatureError(f"{error.reason} (in {display_name(path)})", error.feature, error.record) from error
    return schema.summaries


async def first_records(storages: Storages, shards: Shards, sizes: Sequence[ShardSize]) -> dict[str, list[bytes]]:
    """Records from the beginnings of some shards, by path."""
    found: dict[str, list[bytes]] = {}
    step = max(1, len(sizes) // SAMPLED_SHARDS)
    options = replace(shards.options, block_bytes=1 << 16, on_loss=None)
    for shard in sizes[::step][:SAMPLED_SHARDS]:
        storage = await storages.at(shard.path)
        reader = await ShardReader.open(storage, shard.path, options, expected=shard.expected)
        taken, nbytes = 0, 0
        try:
            while taken < SAMPLED_RECORDS and nbytes < SAMPLED_BYTES and (frames := await reader.read()) is not None:
                records = list(islice(frames, SAMPLED_RECORDS - taken))
                found.setdefault(shard.path, []).extend(records)
                taken, nbytes = taken + len(records), nbytes + frames.nbytes
        finally:
            await reader.aclose()
    return found


async def parts_of(shards: Shards, survey: Survey, count: int) -> list[Part]:
    """Deals all records to about `count` tasks.

    With a manifest, tasks have equally many records, and begin at its marks; else about equally many bytes.
    """
    if survey.told is not None:
        total = sum(shard.records for shard in survey.told)
        count = max(1, min(count, total))
        dealt = [assign_records(survey.told, count, reader, None, survey.manifest) for reader in range(count)]
        bounds = [total * reader // count for reader in range(count + 1)]
        return [
            Part(tuple(own), bounds[reader + 1] - bounds[reader], survey.nbytes // count)
            for reader, own in enumerate(dealt)
        ]
    async with Storages(shards.storage_options, filesystem=shards.filesystem, retry=shards.retry) as storages:
        plan = await assign_shards(storages, survey.sizes, count, shards.options.compression_type)
    size = {shard.path: shard.size for shard in survey.sizes}
    return [
        Part(tuple(own), None, sum(portion_bytes(portion, size[portion.path]) for portion in own))
        for own in plan
        if own
    ]


def portion_bytes(portion: Portion, size: int) -> int:
    """About how many bytes of a shard a portion has."""
    if portion.piece is None:
        return size
    return (size if portion.piece.end is None else portion.piece.end) - portion.piece.start
