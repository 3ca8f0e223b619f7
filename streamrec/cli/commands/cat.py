"""`streamrec head` and `cat`: records on standard output, as text, JSON lines or raw bytes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import click

import streamrec
from streamrec.cli import options
from streamrec.cli.library import (
    Kind,
    ShardReader,
    describe_other,
    display_name,
    escape_json,
    join_names,
    kind_of,
)
from streamrec.cli.output import Meter, print_line, print_record, progress
from streamrec.cli.reading import blocks, open_item, run, total_bytes
from streamrec.cli.records import (
    as_json,
    as_lines,
    check_where,
    find_matching,
    kind_of_all,
    parts_of,
)
from streamrec.cli.sources import Item, check_present, find_records, storages_for


@click.command(
    "head",
    epilog=options.examples(
        "streamrec head -n 3 s3://bucket/train-00000.tfrecord",
        "streamrec head --from-record 5000 --features label,caption manifest.json",
    ),
)
@options.sources
@options.selection_options(10)
@options.features
@options.where
@options.as_json
@options.source_options
def head_command(sources: options.Sources, **choices: Any) -> None:
    """Prints the first records and reads no further."""
    print_records(sources, **choices)


def parse_records(
    _: click.Context, parameter: click.Parameter, text: str | None
) -> list[int] | None:
    """Parses numbers of records, such as 5,17,1000000; -1 is the last record.

    Examples:
        >>> parse_records(None, None, "5,17,-1"), parse_records(None, None, None)
        ([5, 17, -1], None)
    """
    try:
        return None if text is None else [int(number) for number in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is not a list of numbers: write 5,17,1000000", param=parameter
        ) from error


@click.command(
    "cat",
    epilog=options.examples(
        "streamrec cat --json shard.tfrecord | jq -c .label",
        "streamrec cat --records 5,17,1000000 s3://bucket/train.index",
        "streamrec cat --as raw --features image -n 1 shard.tfrecord > first.jpg",
    ),
)
@options.sources
@options.selection_options(None)
@click.option(
    "--records",
    metavar="N,N,...",
    callback=parse_records,
    help="Read and print only these records, numbered from 0; SOURCE must be an index (*.index).",
)
@options.features
@options.where
@options.as_json
@options.source_options
def cat_command(sources: options.Sources, **choices: Any) -> None:
    """Prints all records, shard by shard, and checks each CRC32C."""
    print_records(sources, **choices)


@dataclass(slots=True, kw_only=True)
class Selection:
    """Which records are still to be printed, over all shards.

    Attributes:
        skip: How many records are passed over first.
        left: How many are printed then; None for all.
        byte: Where reading of the one shard begins; None for its first record.
        where: The tree of `--where`; None for all records.
        seen: The features of the records that `where` was tried on.
    """

    skip: int = 0
    left: int | None = None
    byte: int | None = None
    where: tuple[Any, ...] | None = None
    seen: set[str] = field(default_factory=set)

    def window(self, count: int) -> tuple[int, int]:
        """Which of the next `count` records are wanted: the first one, and the end.

        Those before the first one count as skipped afterwards.

        Examples:
            >>> selection = Selection(skip=5, left=3)
            >>> selection.window(4), selection.window(10), selection.skip
            ((4, 4), (1, 4), 0)
        """
        begin = min(self.skip, count)
        end = count
        # With `where` only its answers say how many records of the block are printed.
        if self.left is not None and self.where is None:
            end = min(count, self.skip + self.left)
        self.skip -= begin
        return begin, end

    def print_some(self, count: int) -> None:
        """Notes that so many records were printed."""
        if self.left is not None:
            self.left -= count


def print_records(
    sources: options.Sources,
    *,
    count: int | None,
    output_format: Literal["text", "json", "raw"],
    first: int,
    byte: int | None,
    features: Sequence[str] | None,
    where: tuple[Any, ...] | None,
    as_json: bool,
    records: Sequence[int] | None = None,
) -> None:
    """Prints records. The parameters are the options of the commands."""
    printer = Printer("json" if as_json else output_format, features)
    if records is None:
        run(show(sources, printer, Selection(skip=first, left=count, byte=byte, where=where)))
        return
    if len(sources) != 1 or not sources[0].endswith(".index"):
        raise click.UsageError(
            "--records needs one index (*.index) as SOURCE: streamrec index SHARDS INDEX writes it"
        )
    if first or byte is not None or where is not None:
        raise click.UsageError(
            "--records says which records: leave out --from-record, --from-byte and --where"
        )
    try:
        run(show_numbered(sources, records[:count], printer))
    except IndexError as error:
        raise click.UsageError(str(error)) from error


async def show(names: options.Sources, printer: Printer, selection: Selection) -> None:
    """Prints the selected records of all shards.

    Raises:
        click.UsageError: `selection.byte` is set and there are several shards or a compressed one,
            or no record has a feature that was asked for.
    """
    byte = selection.byte
    limited = selection.left is not None
    async with storages_for(names.storage_options) as storages:
        found = await find_records(storages, names, slices=True)
        shards, selection.skip = without_first(found, selection.skip)
        await check_present(storages, found[: len(found) - len(shards)])
    if byte is not None and len(shards) > 1:
        raise click.UsageError(
            f"--from-byte is a place in one shard, and these are {len(shards):,}: name one of them"
        )
    quiet = sys.stdout.isatty() or limited
    try:
        with progress("reading", total_bytes(shards), quiet=quiet) as meter:
            for shard in shards:
                if selection.left == 0:
                    break
                # A few records need no large block, whose rest would be read for nothing.
                block_bytes = 1 << 16 if limited else None
                async with open_item(shard, byte, block_bytes=block_bytes) as reader:
                    await show_shard(reader, printer, shard, selection, meter)
    except ValueError as error:
        if byte is None or isinstance(error, streamrec.StreamrecError):
            raise
        # The shard is compressed, and has no place to begin at.
        raise click.UsageError(str(error)) from error
    if selection.where is not None and selection.left != 0:
        check_where(selection.where, selection.seen)
    printer.end()


async def show_shard(
    reader: ShardReader,
    printer: Printer,
    shard: Item,
    selection: Selection,
    meter: Meter,
) -> None:
    """Prints the selected records of one shard, and reads no further.

    Afterwards the selection holds what is left to skip and to print of the next shards.
    """
    where = selection.where
    expected = shard.expected if selection.byte is None else None
    async for block in blocks(reader, meter, expected):
        # Of a slice of a split, a shard may have records before it and after it.
        start = reader.place.record - len(block)
        bounds = shard.portion.within(start, len(block))
        frames = block.window(*bounds)
        first, end = selection.window(len(frames))
        kept = frames.window(first, end)
        # Where reading began within the shard, the number of its records before is unknown.
        number = None if selection.byte else start + bounds[0] + first
        rows = [(0, len(kept))] if len(kept) else []
        if where is not None:
            matching = find_matching(kept, where, selection.seen, number or 0)
            rows = [(index, index + 1) for index in matching[: selection.left]]
        for begin, end in rows:
            place = None if number is None else number + begin
            window = kept.window(begin, end)
            printer.show(shard.path, place, window, classes=shard.classes)
            selection.print_some(end - begin)
        if selection.left == 0 or (shard.last is not None and start + len(block) >= shard.last):
            break


async def show_numbered(index: options.Sources, numbers: Sequence[int], printer: Printer) -> None:
    """Prints records by their numbers in an index, in the order of `numbers`; reads no others."""
    source = await streamrec.RecordSource.open(index[0], **index.reading)
    frames = await source.get(numbers)
    places = await source.places(numbers)
    for number, (shard, offset, _) in enumerate(
        zip(*(part.tolist() for part in places), strict=True)
    ):
        one = streamrec.Frames(frames.buffer, frames.spans[number : number + 1])
        first = numbers[number] % len(source) - int(source.index.first_records[shard])
        printer.show(source.index.shards[shard].path, first, one, offset)
    printer.end()
    await source.aclose()


def without_first(shards: Sequence[Item], count: int) -> tuple[list[Item], int]:
    """Leaves out shards that lie before record `count`, as far as manifests give their counts.

    Returns:
        The shards that are left, and how many of their records are still to be skipped.
    """
    left = list(shards)
    while left and left[0].records is not None and left[0].records <= count:
        count -= left.pop(0).records or 0
    return left, count


class Printer:
    """Prints records, and notes which features they have.

    Args:
        output_format: "text", "json" (a line for each record) or "raw" (the payloads, or the values
            of the features, one after the other).
        features: The features to print; None for all.
    """

    def __init__(
        self, output_format: Literal["text", "json", "raw"], features: Sequence[str] | None
    ) -> None:
        self._format = output_format
        self._features = features
        self._kind: Kind | None = None
        self._missing = set(features or ())
        self._met: set[str] = set()

    def show(
        self,
        path: str,
        first: int | None,
        frames: streamrec.Frames,
        byte: int | None = None,
        *,
        classes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Prints records of a shard.

        Args:
            path: The shard's URL.
            first: The number of the first one in its shard; None where reading began at a byte.
            frames: The records.
            byte: The first one's offset in its shard; None if the frames hold the offsets.
            classes: The names of the classes of labels, by feature; text shows them.
        """
        if self._format == "raw" and not self._features:
            for view in frames.views():
                sys.stdout.buffer.write(view)
            return
        self._kind = self._kind or kind_of_all(frames, most=100)
        kind = self._kind or "example"
        for index, record in enumerate(frames):
            self._note(record, kind)
            if self._format == "raw":
                self._check(record, kind, path, None if first is None else first + index)
                self._show_raw(record, kind)
            elif self._format == "json":
                print(escape_json(as_json(record, kind, self._features)))
            else:
                number = "" if first is None else f"record {first + index:,}, "
                offset = frames.offset(index) if byte is None else byte
                print_line(f"{path}, {number}byte {offset:,}: {len(record):,} bytes")
                lines = as_lines(record, kind, self._features, classes)
                print_record(*(f"  {line}" for line in lines))

    def end(self) -> None:
        """Checks that some record has each feature that was asked for."""
        sys.stdout.flush()
        if self._missing and self._kind is not None:
            known = (
                f"they have {join_names(sorted(self._met))}"
                if self._met
                else "they are not Examples"
            )
            raise click.UsageError(
                f"no record that was read has {', '.join(sorted(self._missing))}: {known}"
            )

    def _note(self, record: bytes, kind: Kind) -> None:
        if self._missing:
            names = set().union(*parts_of(record, kind).values())
            self._missing -= names
            self._met |= names

    def _check(self, record: bytes, kind: Kind, path: str, number: int | None) -> None:
        """Checks that a record is a message.

        Otherwise raw output would leave out its values, and no error would say so.
        """
        if kind != "bytes" and kind_of(record) == "bytes":
            reason = f"{describe_other(record)} (in {display_name(path)})"
            raise streamrec.FeatureError(reason, None, number)

    def _show_raw(self, record: bytes, kind: Kind) -> None:
        parts = parts_of(record, kind).values()
        for found in chain.from_iterable(
            part.get(name, ()) for name in self._features or () for part in parts
        ):
            for value in found if isinstance(found, list) else [found]:
                sys.stdout.buffer.write(value if isinstance(value, bytes) else str(value).encode())
