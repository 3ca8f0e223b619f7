"""`streamrec cat`: all records, or a stretch of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import click

from streamrec.cli import options
from streamrec.cli.reading import run
from streamrec.cli.showing import Showing, show, show_numbered

__all__ = ["command"]


def parsed_records(_: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    """Numbers of records, as 5,17,1000000; -1 is the last one.

    Examples:
        >>> parsed_records(None, None, "5,17,-1"), parsed_records(None, None, None)
        ([5, 17, -1], None)
    """
    try:
        return None if text is None else [int(number) for number in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{text!r} are no numbers: write 5,17,1000000", param=parameter) from error


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
    callback=parsed_records,
    help="These records, by number from 0, and nothing else is read; SOURCE is an index (*.index).",
)
@options.features
@options.as_json
@options.storage_options
def command(
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
