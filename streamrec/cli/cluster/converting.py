"""Converting on a cluster: each file becomes one file of the other format, in a task of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

from streamrec import ShardInfo
from streamrec.cli.cluster.tasks import map_on
from streamrec.cli.converting import Conversion, Written, as_text, look_at, needed_look, placing, read, write_files
from streamrec.cli.progress import Meter
from streamrec.cli.reading import run
from streamrec.cli.resharding import Target, check_numbered, write_limited, write_manifest
from streamrec.cli.sources import Found, storages_for
from streamrec.interchange import Changes, Column, Format
from streamrec.shards import shard_path
from streamrec.storage import Replacement

__all__ = ["Work", "convert_on"]


@dataclass(frozen=True, slots=True)
class Work:
    """What each task does.

    Attributes:
        how: How it reads.
        target: Where all files go.
        form: What is written.
        columns: What all records hold; None where that was not asked for, or is not known yet.
        text: Features whose bytes become text.
    """

    how: Conversion
    target: Target
    form: Format
    columns: tuple[Column, ...] | None
    text: Sequence[str]


async def convert_on(found: Sequence[Found], work: Work, manifest: str | None, objects: Replacement) -> list[Written]:
    """Converts all files, and notes what changes; returns the new ones, and writes the manifest if one is wanted."""
    changes = work.how.reading.changes
    if len(found) > 1:
        check_numbered(work.target.pattern)
    if look := needed_look(work.form, work.columns):
        seen = await map_on(partial(look_at_one, work), found)
        work = replace(work, columns=as_text(look.columns(reduce(look.join, seen), changes), work.text))
    paths = [shard_path(work.target.pattern, number) for number in range(len(found))]
    places = [await objects.name(path) for path in paths]
    results = await map_on(partial(convert_one, work), list(zip(places, found, strict=True)))
    made = [replace(item, path=path) for (item, _), path in zip(results, paths, strict=True)]
    for _, changed in results:
        changes.update(changed)
    if manifest is not None:
        shards = [item for item in made if isinstance(item, ShardInfo)]
        await write_manifest(manifest, work.target, shards, objects)
    return [Written(item.path, item.records, item.bytes) for item in made]


def look_at_one(work: Work, item: Found) -> Any:
    """What the records of a file say of their columns; runs on a worker."""

    async def look() -> Any:
        async with placing([item], work.how), aclosing(read([item], work.how, Meter())) as records:
            needed = needed_look(work.form, work.columns)
            assert needed is not None
            return await look_at(records, needed)

    return run(look())


def convert_one(work: Work, placed: tuple[str, Found]) -> tuple[Written | ShardInfo, Changes]:
    """Converts one file; returns it and what changes in it; runs on a worker."""
    changes = work.how.reading.changes
    place, item = placed
    target = replace(work.target, pattern=place)

    async def convert() -> Written | ShardInfo:
        async with (
            placing([item], work.how),
            storages_for(target.storage_options) as storages,
            Replacement(storages, stages=False, keeps=False) as objects,
            aclosing(read([item], work.how, Meter())) as records,
        ):
            if work.form.name == "tfrecord":
                [shard] = await write_limited(records, target, objects, None, None)
                return shard
            limits = None, None, changes
            [written] = await write_files(records, target, work.form, work.columns or (), objects, *limits)
            return written

    return run(convert()), changes
