"""`streamrec verify`: checks whether the data is as it was written, and reports where it is not.

It can also write a copy that contains the good records only.
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
from streamrec.cli.library import (
    LONG_BYTES,
    Expected,
    Gap,
    Loss,
    Replacement,
    ShardReader,
    VerifyProblem,
    VerifyReport,
)
from streamrec.cli.output import Meter, format_bytes, plural, print_json, print_line, progress
from streamrec.cli.program import BAD_DATA
from streamrec.cli.reading import blocks, jobs, map_concurrently, open_item, run, total_bytes
from streamrec.cli.sources import MANIFESTS, Item, find_records, storages_for
from streamrec.cli.tfds_folders import INFO
from streamrec.cli.writing import copy_paths, end_dry_run, open_set, refuse_existing, refuse_sources


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
    findings = run(verify_sources(sources, repair, overwrite, ray_address))
    if as_json:
        print_json(findings.as_json())
    else:
        print_findings(findings)
    return 0 if findings.ok else BAD_DATA


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that `verify` found.

    Attributes:
        reports: How the shards differ from each manifest.
        scans: The content of each shard that was read.
        gaps: Which shards are missing, as the names of the others show.
    """

    reports: Sequence[VerifyReport]
    scans: Sequence[ShardScan]
    gaps: Sequence[Gap]

    @property
    def ok(self) -> bool:
        """Whether no shard is damaged, missing, or other than its manifest says."""
        damaged = any(scan.damages for scan in self.scans)
        return all(self.reports) and not self.gaps and not damaged

    def as_json(self) -> dict[str, Any]:
        """The findings as an object of JSON."""
        problems = [problem for report in self.reports for problem in report.problems]
        problems += [problem for gap in self.gaps for problem in VerifyProblem.of_gap(gap)]
        return {
            "ok": self.ok,
            "manifests": [
                {"path": each.manifest, "ok": each.ok, "shards": each.shards, "bytes": each.bytes}
                for each in self.reports
            ],
            "problems": [asdict(problem) for problem in problems],
            "shards": [scan.as_json() for scan in self.scans],
        }


def print_findings(findings: Findings) -> None:
    """Prints what differs from manifests, the damage of each shard, a summary, and the gaps."""
    scans = findings.scans
    for report in findings.reports:
        print_line(*str(report).split("\n"))
    # Only shards with damage have lines of their own: there may be thousands.
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
    print_line(*map(str, findings.gaps))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The shards and how they differ from manifests, before they are searched for damage.

    Attributes:
        listed: The shards of directories, patterns and names.
        manifests: The manifests that were typed, or are in the directories.
        reports: How the shards differ from each manifest.
        gaps: Which shards are missing, as the names of the others show. Those that a report names
            are left out.
    """

    listed: list[Item]
    manifests: list[str]
    reports: list[VerifyReport]
    gaps: list[Gap]

    def paths(self, *kinds: str) -> set[str]:
        """The shards with problems of these kinds."""
        problems = [problem for report in self.reports for problem in report.problems]
        return {problem.path for problem in problems if problem.kind in kinds}


async def compare(sources: options.Sources) -> Comparison:
    """Finds the shards, and compares them with their manifests."""
    names = sources.only([name for name in sources if not name.endswith(MANIFESTS)])
    below: list[str] = []
    shown: list[Gap] = []
    async with storages_for(sources.storage_options) as storages:
        listed = await find_records(storages, names, manifests=below, gaps=shown)
    manifests = list(
        dict.fromkeys([*(name for name in sources if name.endswith(MANIFESTS)), *below])
    )
    with progress("comparing", None):
        reports = [
            await streamrec.verify(name, parallel=jobs(), **sources.reading) for name in manifests
        ]
    missing = Comparison(listed, manifests, reports, []).paths("missing")
    gaps = [gap for gap in shown if len(gap.totals) > 1 or not missing.issuperset(gap.examples)]
    return Comparison(listed, manifests, reports, gaps)


async def verify_sources(
    sources: options.Sources,
    repair: str | None,
    overwrite: options.Overwrite,
    ray_address: str | None,
) -> Findings:
    """Compares the shards with their manifests and names, and searches them for damage.

    Args:
        sources: The names that were typed.
        repair: Where copies with the good records go; None for no copies.
        overwrite: Whether copies may replace objects.
        ray_address: A Ray cluster that reads the shards; None for this process.
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
            # The report says how it differs; the scan reads it as it is.
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
    reports = [*compared.reports, *compare_with_folders(shards, scans)]
    return Findings(reports=reports, scans=scans, gaps=compared.gaps)


def compare_with_folders(shards: Sequence[Item], scans: Sequence[ShardScan]) -> list[VerifyReport]:
    """What differs from the descriptions of folders of TensorFlow Datasets: numbers of records."""
    checked: dict[str, list[tuple[Item, ShardScan]]] = {}
    for shard, found in zip(shards, scans, strict=True):
        description = shard.expected.manifest
        # Of a damaged shard, the damage is told.
        if description is not None and description.endswith(INFO) and not found.damages:
            checked.setdefault(description, []).append((shard, found))
    return [
        VerifyReport(
            manifest=description,
            shards=len(pairs),
            bytes=sum(found.bytes for _, found in pairs),
            problems=tuple(
                VerifyProblem(shard.path, "records", f"{shard.records:,}", f"{found.records:,}")
                for shard, found in pairs
                if shard.records is not None and found.records != shard.records
            ),
        )
        for description, pairs in checked.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardScan:
    """The content of one shard.

    Attributes:
        path: Its URL.
        bytes: How many bytes were read, as they are stored.
        records: The number of good records.
        losses: The first thousand losses, in order.
        damages: The number of all losses.
        lost_bytes: The number of lost bytes, as far as it is known.
        copy: The URL of the copy with the good records; None if there is none.
    """

    path: str
    bytes: int
    records: int
    losses: tuple[Loss, ...]
    damages: int
    lost_bytes: int
    copy: str | None

    def as_json(self) -> dict[str, Any]:
        """The scan as an object of JSON."""
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

    Args:
        work: The shard, and the URL of the copy of its good records; None for no copy.
        objects: The replacement that the copy belongs to; None on a worker of a cluster.
        meter: Counts the bytes that are read.
        overwrite: Whether the copy may replace an object, as for `ShardWriter`.
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


async def copy_long_records(reader: ShardReader, writer: streamrec.ShardWriter) -> None:
    """Copies records that are too long for memory: reads their bytes again, piece by piece."""
    for record in reader.take_long_records():
        frame = reader.plain_bytes(record.offset, record.offset + record.nbytes)
        await writer.write_frame(frame, record.length)
