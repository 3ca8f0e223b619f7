"""`streamrec head` and `cat`: records on standard output, in one of three forms."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, NamedTuple

import click

import streamrec
from streamrec.cli import options
from streamrec.cli.output import print_line, print_record, progress
from streamrec.cli.reading import blocks, open_item, run, total_bytes
from streamrec.cli.records import as_json, as_lines, kind_of_all, parts_of
from streamrec.cli.sources import Item, check_present, find_records, storages_for
from streamrec.display import escape_json
from streamrec.interchange import Kind


@click.command(
    "head",
    epilog=options.examples(
        "streamrec head -n 3 s3://bucket/train-00000.tfrecord",
        "streamrec head --from-record 5000 --features label,caption manifest.json",
    ),
)
@options.sources
@options.shown(10)
@options.features
@options.as_json
@options.storage_options
def head_command(
    sources: Sequence[str],
    count: int | None,
    form: Literal["text", "json", "raw"],
    first: int,
    byte: int | None,
    features: Sequence[str] | None,
    as_json: bool,
    storage_options: Mapping[str, Any],
) -> None:
    """Prints the first records, and reads no more than these."""
    run(show(sources, Showing("json" if as_json else form, count, first, byte, features), storage_options))


def parse_records(_: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    """Numbers of records, as 5,17,1000000; -1 is the last one.

    Examples:
        >>> parse_records(None, None, "5,17,-1"), parse_records(None, None, None)
        ([5, 17, -1], None)
    """
    try:
        return None if text is None else [int(number) for number in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a list of numbers: write 5,17,1000000", param=parameter) from error


@click.command(
    "cat",
    epilog=options.examples(
        "streamrec cat --json shard.tfrecord | jq -c .label",
        "streamrec cat --records 5,17,1000000 s3://bucket/train.index",
        "streamrec cat --as raw --features image -n 1 shard.tfrecord > first.jpg",
    ),
)
@options.sources
@options.shown(None)
@click.option(
    "--records",
    metavar="N,N,...",
    callback=parse_records,
    help="These records, by number from 0, and nothing else is read; SOURCE is an index (*.index).",
)
@options.features
@options.as_json
@options.storage_options
def cat_command(
    sources: options.Sources,
    count: int | None,
    form: Literal["text", "json", "raw"],
    first: int,
    byte: int | None,
    records: Sequence[int] | None,
    features: Sequence[str] | None,
    as_json: bool,
    storage_options: Mapping[str, Any],
) -> None:
    """Prints records, one shard after the other, each checked."""
    showing = Showing("json" if as_json else form, count, first, byte, features)
    if records is None:
        run(show(sources, showing, storage_options))
        return
    if len(sources) != 1 or not sources[0].endswith(".index"):
        raise click.UsageError("--records needs one index (*.index) as SOURCE: streamrec index SHARDS INDEX writes it")
    if first or byte is not None:
        raise click.UsageError("--records says which records: leave out --from-record and --from-byte")
    try:
        run(show_numbered(sources, records[:count], showing, storage_options))
    except IndexError as error:
        raise click.UsageError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Showing:
    """Which records to print, and how.

    Attributes:
        form: "text", "json" (a line for each record) or "raw" (the payloads, one after the other).
        count: At most this many records; None for all.
        first: The number of the first one, over all shards.
        byte: The offset in the one shard from which to search for the first one; None for the beginning.
        features: Only these; None for all.
    """

    form: Literal["text", "json", "raw"]
    count: int | None = None
    first: int = 0
    byte: int | None = None
    features: Sequence[str] | None = None


class Block(NamedTuple):
    """Some records of a shard.

    Attributes:
        path: The shard's URL.
        first: The number of the first one in its shard; None where reading began at a byte.
        frames: The records.
        byte: The first one's offset in its shard; None where the frames know it.
    """

    path: str
    first: int | None
    frames: streamrec.Frames
    byte: int | None = None


async def show(names: Sequence[str], showing: Showing, storage_options: Mapping[str, Any]) -> None:
    """Prints records."""
    async with storages_for(storage_options) as storages:
        found = await find_records(storages, names)
        shards, skipped = without_first(found, showing.first)
        await check_present(storages, found[: len(found) - len(shards)])
    if showing.byte is not None and len(shards) > 1:
        raise click.UsageError(f"--from-byte is a place in one shard, and these are {len(shards):,}: name one of them")
    printer = Printer(replace(showing, first=skipped))
    try:
        async with aclosing(selected_blocks(shards, printer.showing, storage_options)) as selected:
            async for block in selected:
                printer.show(block)
    except ValueError as error:
        if showing.byte is None or isinstance(error, streamrec.StreamrecError):
            raise
        raise click.UsageError(str(error)) from error  # it is compressed, and has no place to begin at
    printer.end()


async def show_numbered(
    index: options.Sources, numbers: Sequence[int], showing: Showing, storage_options: Mapping[str, Any]
) -> None:
    """Prints records of an index by their numbers, in that order; reads no others."""
    source = await streamrec.RecordSource.open(index[0], shard_root=index.shard_root, storage_options=storage_options)
    frames = await source.get(numbers)
    places = await source.places(numbers)
    printer = Printer(showing)
    for number, (shard, offset, _) in enumerate(zip(*(part.tolist() for part in places), strict=True)):
        info = source.index.shards[shard]
        one = streamrec.Frames(frames.buffer, frames.spans[number : number + 1])
        first = numbers[number] % len(source) - int(source.index.first_records[shard])
        printer.show(Block(info.path, first, one, offset))
    printer.end()
    await source.aclose()


def without_first(shards: Sequence[Item], count: int) -> tuple[list[Item], int]:
    """The shards from that of record `count` on, as far as manifests say; and how many records are left to skip."""
    left = list(shards)
    while left and left[0].records is not None and left[0].records <= count:
        count -= left.pop(0).records or 0
    return left, count


async def selected_blocks(
    shards: Sequence[Item], showing: Showing, storage_options: Mapping[str, Any]
) -> AsyncGenerator[Block, None]:
    """The records to print, a block at a time; reads no more than these."""
    skip, left = showing.first, showing.count
    quiet = sys.stdout.isatty() or left is not None
    with progress("reading", total_bytes(shards), quiet=quiet) as meter:
        for shard in shards:
            if left == 0:
                return
            block_bytes = None if left is None else 1 << 16
            async with open_item(shard, storage_options, showing.byte, block_bytes=block_bytes) as reader:
                async for frames in blocks(reader, meter, shard.expected if showing.byte is None else None):
                    first = None if showing.byte else reader.place.record - len(frames)
                    skipped = min(skip, len(frames))
                    skip -= skipped
                    kept = frames.window(skipped, len(frames) if left is None else min(len(frames), skipped + left))
                    if len(kept):
                        yield Block(shard.path, None if first is None else first + skipped, kept)
                    left = None if left is None else left - len(kept)
                    if left == 0:
                        return


class Printer:
    """Prints records, and notes which features they have."""

    def __init__(self, showing: Showing) -> None:
        self.showing = showing
        self._kind: Kind | None = None
        self._missing = set(showing.features or ())
        self._met: set[str] = set()

    def show(self, block: Block) -> None:
        """Prints the records of a block."""
        if self.showing.form == "raw" and not self.showing.features:
            for view in block.frames.views():
                sys.stdout.buffer.write(view)
            return
        self._kind = self._kind or kind_of_all(block.frames, most=100)
        kind = self._kind or "example"
        for index, record in enumerate(block.frames):
            self._note(record, kind)
            if self.showing.form == "raw":
                self._show_raw(record, kind)
            elif self.showing.form == "json":
                print(escape_json(as_json(record, kind, self.showing.features)))
            else:
                self._show_text(block, index, record, kind)

    def end(self) -> None:
        """Checks that some record has each feature that was asked for."""
        sys.stdout.flush()
        if self._missing and self._kind is not None:
            known = f"they have {', '.join(sorted(self._met))}" if self._met else "they are not Examples"
            raise click.UsageError(f"no record that was read has {', '.join(sorted(self._missing))}: {known}")

    def _note(self, record: bytes, kind: Kind) -> None:
        if self._missing:
            names = set().union(*parts_of(record, kind).values())
            self._missing -= names
            self._met |= names

    def _show_raw(self, record: bytes, kind: Kind) -> None:
        parts = parts_of(record, kind).values()
        for found in chain.from_iterable(part.get(name, ()) for name in self.showing.features or () for part in parts):
            for value in found if isinstance(found, list) else [found]:
                sys.stdout.buffer.write(value if isinstance(value, bytes) else str(value).encode())

    def _show_text(self, block: Block, index: int, record: bytes, kind: Kind) -> None:
        number = "" if block.first is None else f"record {block.first + index:,}, "
        byte = block.frames.offset(index) if block.byte is None else block.byte
        print_line(f"{block.path}, {number}byte {byte:,}: {len(record):,} bytes")
        for line in as_lines(record, kind, self.showing.features):
            print_record(f"  {line}")
