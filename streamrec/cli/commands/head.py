"""`streamrec head`: the first records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import click

from streamrec.cli import options
from streamrec.cli.reading import run
from streamrec.cli.showing import Showing, show

__all__ = ["command"]


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
    """Prints the first records, and reads no more than these."""
    run(show(sources, Showing("json" if as_json else form, count, first, byte, features), storage_options))
