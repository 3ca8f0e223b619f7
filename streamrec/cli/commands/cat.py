"""`streamrec cat`: all records, or a stretch of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import click

from streamrec.cli import options
from streamrec.cli.reading import run
from streamrec.cli.showing import Showing, show

__all__ = ["command"]


@click.command(
    "cat",
    epilog=options.examples(
        "streamrec cat --json shard.tfrecord | jq -c .label",
        "streamrec cat --as raw --features image -n 1 shard.tfrecord > first.jpg",
    ),
)
@options.sources
@options.shown(None)
@options.features
@options.as_json
@options.storage_options
def command(
    sources: Sequence[str],
    count: int | None,
    form: Literal["text", "json", "raw"],
    first: int,
    byte: int | None,
    features: Sequence[str] | None,
    as_json: bool,
    storage_options: Mapping[str, Any],
) -> None:
    """Prints records, one shard after the other, each checked."""
    run(show(sources, Showing("json" if as_json else form, count, first, byte, features), storage_options))
