"""Tables: figures of a chain for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from streamrec.pipeline.telemetry.snapshots import ChainStats, StageStats

__all__ = ["table"]

HEAD: Final = ("", "elements in", "out", "MB in", "out", "busy s", "no input", "no output", "queue MB")
WIDEST: Final = 44
"""Characters of a description's line that are shown."""


def table(chain: ChainStats) -> str:
    """A row for each source and stage, in the order in which elements pass.

    >>> source = StageStats("range", "Range(0, 9)", elements_out=9, bytes_out=72, waited_for_output=1.5)
    >>> stage = StageStats("batch", "Batch(4)", 9, 72, 3, 96, busy=1.5, waited_for_input=0.1)
    >>> print(table(ChainStats((source, stage))))
                 elements in  out  MB in  out  busy s  no input  no output  queue MB
    Range(0, 9)            0    9    0.0  0.0     0.0       0.0        1.5
    Batch(4)               9    3    0.0  0.0     1.5       0.1        0.0
    """
    rows = [HEAD, *(tuple(cells(depth, stage)) for depth, stage in chain.rows())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(line(row, widths) for row in rows)


def cells(depth: int, stage: StageStats) -> Iterator[str]:
    name = f"{'  ' * depth}{stage.line}"
    yield name if len(name) <= WIDEST else f"{name[: WIDEST - 1]}…"
    yield from (f"{count:,}" for count in (stage.elements_in, stage.elements_out))
    yield from (f"{count / 1e6:,.1f}" for count in (stage.bytes_in, stage.bytes_out))
    yield from (f"{value:,.1f}" for value in (stage.busy, stage.waited_for_input, stage.waited_for_output))
    yield f"{stage.queued / 1e6:,.1f} of {stage.queue_limit / 1e6:,.1f}" if stage.queue_limit else ""


def line(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers = (
        cell.rjust(width) if index else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join((name, *numbers)).rstrip()
