"""The section "What it costs" of the guide, made of the data."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.harness.process import ROOT
from benchmarks.harness.results import Data, load

PAGE = ROOT / "docs" / "guides" / "epochs.md"
HEADING = "## What it costs"

NAMES = {"streamrec": "streamrec", "WebDataset": "WebDataset", "Mosaic": "MosaicML Streaming"}
ERROR_CHARACTERS = 90

Row = dict[str, Any]


def write_page() -> None:
    """Writes the section into the guide: in the place of the old one, or at the end."""
    PAGE.write_text(with_section(PAGE.read_text(), section(load("disk_cache"))))


def with_section(page: str, text: str) -> str:
    r"""The page with this section.

    >>> page = "# A\n\n## What it costs\n\nold\n\n## B\n"
    >>> with_section(page, "## What it costs\n\nnew\n")
    '# A\n\n## What it costs\n\nnew\n\n## B\n'
    """
    before, found, after = page.partition(f"{HEADING}\n")
    rest = re.search(r"^## ", after, re.MULTILINE) if found else None
    tail = after[rest.start() :] if rest else ""
    return before.rstrip("\n") + "\n\n" + text + ("\n" + tail if tail else "")


def section(data: Data) -> str:
    """The whole section."""
    peers = data["peers"]
    about = (
        f"`python -m benchmarks.disk_cache` reads {data['megabytes'] * 10:,} images of 100 kB "
        "through the caches of three libraries, each in its own format, in shards of 4 MB of a "
        "SeaweedFS on the same machine. The server's side counts. Each epoch has the same order, "
        'unless the row says "shuffled". "Read" is what the store sent in epochs 1, 2 and 3, as a '
        'part of the data; "disk" is the most that the cache took. The other libraries are '
        f"WebDataset {peers['webdataset']} and MosaicML Streaming {peers['mosaicml-streaming']}."
    )
    killed = (
        "If a process is killed (`kill -9`) in the middle of epoch 2, a new one reads epoch 2 from "
        "its beginning:"
    )
    overhead = (
        "Epoch 1 through the cache of streamrec is compared with reading without a cache, and "
        "epoch 2 with reading the same local files. Above 1, the cache takes longer; in brackets "
        f"are the lowest and the highest of {data['rounds']} rounds:"
    )
    parts = [
        HEADING,
        wrapped(about),
        table(READ_HEAD, read_rows(data["rows"])),
        wrapped(killed),
        table(KILLED_HEAD, killed_rows(data["rows"])),
        wrapped(overhead),
        table(OVERHEAD_HEAD, overhead_rows(data["overhead"])),
    ]
    return "\n\n".join(parts) + "\n"


def wrapped(text: str) -> str:
    """A paragraph in lines as long as those of the other pages."""
    return "\n".join(textwrap.wrap(text, 132, break_on_hyphens=False))


READ_HEAD = (
    "limit",
    "library",
    "read by one process",
    "read by four ranks",
    "disk",
    "processor s/GB, epochs 1 and 3",
)
KILLED_HEAD = ("limit", "library", "epoch 2 reads", "disk")
OVERHEAD_HEAD = ("data", "epoch 1: time", "processor time", "epoch 2: time", "processor time")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [f"| {' | '.join(cells)} |" for cells in [head, *rows]]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def read_rows(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each limit and library, the shuffled ones after those in order."""
    plain = [row for row in rows if not row["killed"]]
    lines = []
    for row in (row for row in plain if row["processes"] == 1):
        ranks = [other for other in plain if other["processes"] > 1 and is_same(row, other)]
        lines.append(
            [
                limit_of(row),
                NAMES[row["side"]],
                read_of(row),
                ", ".join(map(read_of, ranks)),
                disk_of([row, *ranks]),
                cpu_of(row),
            ]
        )
    return lines


def killed_rows(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each limit and library."""
    return [
        [
            limit_of(row),
            NAMES[row["side"]],
            error_of(row) or f"{last(row)['read']:.2f}",
            disk_of([row]),
        ]
        for row in rows
        if row["killed"]
    ]


def overhead_rows(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each kind of objects."""
    names = [
        "epoch 1, time",
        "epoch 1, processor time",
        "epoch 2, time",
        "epoch 2, processor time",
    ]
    return [
        [row["work"], *(f"{row[name]:.2f} ({spread_of(row[f'{name}, spread'])})" for name in names)]
        for row in rows
    ]


def is_same(row: Row, other: Row) -> bool:
    """Whether rows differ only in the number of processes."""
    names = ("side", "limit", "shuffled", "shard_mb")
    return all(row[name] == other[name] for name in names)


def limit_of(row: Row) -> str:
    """The limit, and what is special in this row.

    >>> limit_of({"limit": 0.5, "shuffled": True, "shard_mb": 4.0})
    '50 %, shuffled'
    >>> limit_of({"limit": 0.1, "shuffled": False, "shard_mb": 20.0})
    '10 %, shards of 20 MB'
    """
    special = ", shuffled" if row["shuffled"] else ""
    special += f", shards of {row['shard_mb']:.0f} MB" if row["shard_mb"] > 5 else ""
    return f"{100 * row['limit']:.0f} %{special}"


def read_of(row: Row) -> str:
    """The parts of the data that were read in each epoch, and the error if there was one."""
    parts = [f"{epoch['read']:.2f}" for epoch in row["epochs"]]
    return ", ".join([*parts, *filter(None, [error_of(row)])])


def disk_of(rows: Sequence[Row]) -> str:
    """The most that a cache took in these rows."""
    return f"{100 * max(row['disk'] for row in rows):.0f} %"


def cpu_of(row: Row) -> str:
    """Processor seconds for each GB in epochs 1 and 3, as far as there are some."""
    epochs = row["epochs"]
    return (
        ", ".join(f"{epoch['cpu_s_gb']:.2f}" for epoch in (epochs[0], epochs[-1])) if epochs else ""
    )


def error_of(row: Row) -> str:
    """The error of a row, short; "" without one."""
    text = str(row.get("error", "")).replace("|", "/")
    return text if len(text) <= ERROR_CHARACTERS else text[:ERROR_CHARACTERS].rstrip() + " ..."


def last(row: Row) -> Row:
    """The last epoch of a row."""
    epoch: Row = row["epochs"][-1]
    return epoch


def spread_of(spread: Sequence[float]) -> str:
    """The lowest and the highest of the rounds."""
    return " to ".join(f"{value:.2f}" for value in spread)
