"""`streamrec verify`: whether the data is what was written, and where it is not.

It can also write a copy without the damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import click

import streamrec
from streamrec.cli import options
from streamrec.cli.cluster import connect, map_on, ray_option
from streamrec.cli.output import Meter, format_bytes, plural, print_json, print_line, progress
from streamrec.cli.program import BAD_DATA
from streamrec.cli.reading import blocks, jobs, map_concurrently, open_item, run, total_bytes
from streamrec.cli.sources import MANIFESTS, Item, find_records, storages_for
from streamrec.cli.writing import copy_paths, end_dry_run, open_set, refuse_existing, refuse_sources
from streamrec.shards import LONG_BYTES, Expected, Gap, VerifyProblem
from streamrec.storage import Replacement


@click.command(
    "verify",
    epilog=options.examples(
        "streamrec verify 's3://bucket/train-*.tfrecord'",
        "streamrec verify s3://bucket/train/manifest.json",
        "streamrec verify --repair clean/ damaged.tfrecord",
    ),
)
@options.sources
@options.file_option(
    "--repair",
    metavar="URL",
    help="Write the good records to this directory, or for one shard to this URL.",
)
@options.overwrite_option("Let --repair replace existing files")
@options.dry_run
@options.jobs
@ray_option
@options.as_json
@options.source_options
def verify_command(
    sources: options.Sources,
    repair: str | None,
    overwrite: options.Overwrite,
    ray_address: str | None,
    as_json: bool,
) -> int:
    """Reads all records, checks every CRC32C, and reports damage by record and byte.

    If SOURCE is a manifest or an index (.json, .index, or a directory with a manifest.json), it is
    compared with the shards: the report has missing and extra shards, and other sizes, checksums
    and numbers of records. Shards that differ are then searched for damage. If the names of shards
    tell how many there are (-00005-of-00008), those that are missing are reported, too. The exit
    code is 1 if anything is wrong.
    """
    if ray_address is not None:
        connect(ray_address)
    reports, scans, gaps = run(verify_sources(sources, repair, overwrite, ray_address))
    ok = all(reports) and not gaps and not any(scan.damages for scan in scans)
    if as_json:
        found = [problem for report in reports for problem in report.problems]
        found += [problem for gap in gaps for problem in VerifyProblem.of_gap(gap)]
        problems = [asdict(problem) for problem in found]
        manifests = [
            {"path": each.manifest, "ok": each.ok, "shards": each.shards, "bytes": each.bytes}
            for each in reports
        ]
        shards = [scan.as_json() for scan in scans]
        print_json({"ok": ok, "manifests": manifests, "problems": problems, "shards": shards})
    else:
        print_findings(reports, scans)
        print_line(*map(str, gaps))
    return 0 if ok else BAD_DATA


def print_findings(
    reports: Sequence[streamrec.shards.VerifyReport], scans: Sequence[ShardScan]
) -> None:
    for report in reports:
        print_line(*str(report).split("\n"))
    for item in scans:
        if item.damages:
            print_line(
                f"{item.path}: {item.damages:,} damaged, {format_bytes(item.lost_bytes)} lost"
            )
        for loss in item.losses:
            lost = "the rest of the shard" if loss.nbytes is None else f"{loss.nbytes:,} bytes"
            print_line(
                f"  byte {loss.offset:,}, after {loss.record:,} good records: {lost} lost: "
                f"{loss.reason}"
            )
        if item.damages > len(item.losses):
            print_line(f"  and {item.damages - len(item.losses):,} more")
        if item.copy is not None:
            print_line(f"{item.path}: {item.records:,} good records written to {item.copy}")
    damaged = sum(bool(item.damages) for item in scans)
    if scans:
        records = sum(item.records for item in scans)
        state = f"{plural(damaged, 'shard')} damaged" if damaged else "nothing is damaged"
        print_line(f"{plural(len(scans), 'shard')} read, {plural(records, 'good record')}, {state}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is known before shards are searched for damage.

    Attributes:
        listed: The shards of directories, patterns and names.
        manifests: The manifests that were named, or are in the directories.
        reports: How the shards differ from each manifest.
        gaps: Which shards are missing, as the names of the others tell, and no report says so.
    """

    listed: list[Item]
    manifests: list[str]
    reports: list[streamrec.shards.VerifyReport]
    gaps: list[Gap]

    def paths(self, *kinds: str) -> set[str]:
        """The shards with problems of these kinds."""
        problems = [problem for report in self.reports for problem in report.problems]
        return {problem.path for problem in problems if problem.kind in kinds}


async def compare(sources: options.Sources) -> Comparison:
    """Finds the shards, and compares them with their manifests."""
    names = sources.only([name for name in sources if not name.endswith(MANIFESTS)])
    below: list[str] = []
    told: list[Gap] = []
    async with storages_for(sources.storage_options) as storages:
        listed = await find_records(storages, names, manifests=below, gaps=told)
    manifests = list(
        dict.fromkeys([*(name for name in sources if name.endswith(MANIFESTS)), *below])
    )
    with progress("comparing", None):
        reports = [
            await streamrec.verify(name, parallel=jobs(), **sources.reading) for name in manifests
        ]
    missing = Comparison(listed, manifests, reports, []).paths("missing")
    gaps = [gap for gap in told if len(gap.totals) > 1 or not missing.issuperset(gap.examples)]
    return Comparison(listed, manifests, reports, gaps)


async def verify_sources(
    sources: options.Sources,
    repair: str | None,
    overwrite: options.Overwrite,
    ray_address: str | None,
) -> tuple[list[streamrec.shards.VerifyReport], list[ShardScan], list[Gap]]:
    """Compares the shards with the manifests that were given, and with their own names.

    Returns what differs from each manifest, what each shard holds that was read, and which shards
    of directories and patterns are missing, as the names of the others tell.
    """
    compared = await compare(sources)
    manifests = compared.manifests
    missing = compared.paths("missing")
    differing = compared.paths("bytes", "crc32c", "records")
    async with storages_for(sources.storage_options) as storages:
        named = await find_records(storages, manifests, sources.shard_root, gaps=[])
        verified = {shard.path for shard in named}
        others = [shard for shard in compared.listed if shard.path not in verified]
        wanted = [
            # it is read as it is: how it differs is in the report
            replace(shard, expected=Expected(size=None))
            for shard in named
            if shard.path in differing or (repair and shard.path not in missing)
        ]
        shards = list({shard.path: shard for shard in [*wanted, *others]}.values())
        written = (
            []
            if repair is None
            else copy_paths([shard.path for shard in shards], repair, "--repair")
        )
        copies: Sequence[str | None] = written or [None] * len(shards)
        spared = await refuse_sources(
            storages, [*(shard.path for shard in shards), *manifests], storages, written
        )
        if not overwrite:
            await refuse_existing(storages, written)
        end_dry_run(shards, written)
        async with open_set(storages, overwrite, spared) as objects:
            with progress("verifying", total_bytes(shards)) as meter:
                if ray_address is None:
                    check = partial(scan, objects=objects, meter=meter)
                    scans = await map_concurrently(check, list(zip(shards, copies, strict=True)))
                else:
                    places = [copy and await objects.name(copy) for copy in copies]
                    check = partial(scan, overwrite=overwrite or True)
                    found = await map_on(check, list(zip(shards, places, strict=True)))
                    scans = [
                        replace(each, copy=copy) for each, copy in zip(found, copies, strict=True)
                    ]
    return compared.reports, scans, compared.gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardScan:
    """The content of one shard.

    Attributes:
        path: Its URL.
        bytes: How many bytes were read, as they are stored.
        records: The number of good records.
        losses: The first thousand damaged places, in order.
        damages: The number of damaged places.
        lost_bytes: Their bytes together, as far as that is known.
        copy: Where the good records were written, or None.
    """

    path: str
    bytes: int
    records: int
    losses: tuple[streamrec.tfrecord.Loss, ...]
    damages: int
    lost_bytes: int
    copy: str | None

    def as_json(self) -> dict[str, Any]:
        """The same as an object of JSON."""
        losses = [
            {
                "byte": loss.offset,
                "bytes": loss.nbytes,
                "record": loss.record,
                "reason": loss.reason,
            }
            for loss in self.losses
        ]
        return {
            "path": self.path,
            "bytes": self.bytes,
            "records": self.records,
            "damages": self.damages,
            "losses": losses,
            "copy": self.copy,
        }


async def scan(
    work: tuple[Item, str | None],
    objects: Replacement | None = None,
    meter: Meter | None = None,
    overwrite: options.Overwrite = True,
) -> ShardScan:
    """Reads one shard to its end, past all damage, with every CRC32C checked.

    The copy of its good records, if there is one, joins `objects`; on a worker of a cluster that is
    None.
    """
    shard, copy = work
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(
            open_item(shard, on_error="resync", long_bytes=LONG_BYTES)
        )
        writer = None
        if copy is not None:
            writer = streamrec.ShardWriter(
                copy,
                reader.compression_type,
                overwrite=overwrite,
                storage_options=shard.storage_options,
            )
            if objects is not None:
                writer.join(objects)
            await stack.enter_async_context(writer)
        async for frames in blocks(reader, meter):
            if writer is not None:
                await copy_long_records(reader, writer)
                await writer.write_batch(frames)
        # Records too long for memory stand in no block: the last ones may follow the last block.
        if writer is not None:
            await copy_long_records(reader, writer)
        read = reader.statistics
    return ShardScan(
        path=shard.path,
        bytes=read.bytes,
        records=reader.place.record,
        losses=tuple(reader.losses),
        damages=reader.skipped,
        lost_bytes=read.lost_bytes,
        copy=copy,
    )


async def copy_long_records(
    reader: streamrec.shards.ShardReader, writer: streamrec.ShardWriter
) -> None:
    """Copies the records that were checked and not held in memory.

    It reads their bytes again, piece by piece.
    """
    for record in reader.take_long_records():
        frame = reader.plain_bytes(record.offset, record.offset + record.nbytes)
        await writer.write_frame(frame, record.length)
