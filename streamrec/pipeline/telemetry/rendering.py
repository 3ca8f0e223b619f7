"""What people see of a chain and its figures: a table of text, and boxes and bars in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from streamrec import html
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.telemetry.snapshots import ChainStats, StageStats
from streamrec.pipeline.telemetry.stage_names import held_chains, own_line, title

__all__ = ["chart", "dataset_html", "table"]

HEAD: Final = ("", "elements in", "out", "MB in", "out", "busy s", "no input", "no output", "queue MB")
WIDEST: Final = 44
"""Characters of a description's line that are shown."""
PARTS: Final = (("busy", "busy"), ("input", "waited for input"), ("output", "waited for output"))


def dataset_html(chain: Chain) -> str:
    """The sources and stages as boxes, in the order in which elements pass."""
    return html.fragment(drawn(chain))


def drawn(chain: Chain) -> str:
    """A chain: one within its source comes before it, several are set in, one below the other."""
    inner = [drawn(part) for part in held_chains(chain.source)]
    boxes = [html.element("div", html.boxed(title(part), own_line(part))) for part in (chain.source, *chain.stages)]
    if len(inner) > 1:
        inner = ["".join(html.element("div", part, kind="inner") for part in inner)]
    return html.element("div", "↓", kind="arrow").join([*inner, *boxes])


def chart(chain: ChainStats, consumer: StageStats, bottleneck: str) -> str:
    """A row and a bar for each source and stage, the consumer, and the bottleneck.

    Args:
        chain: The sources and stages.
        consumer: What the consumer took, and how long it was busy and waited.
        bottleneck: What limits the run.
    """
    seconds = consumer.busy + consumer.waited_for_input
    key = [html.element("span", f'<span class="key {kind}"></span>', html.text(told)) for kind, told in PARTS]
    rows = [chart_row(depth, stage, seconds) for depth, stage in chain.rows()]
    rows.append(chart_row(0, consumer, seconds))
    told = html.element("div", "bottleneck: ", html.element("b", html.text(bottleneck)))
    head = ["", "elements", "MB", f"of {seconds:,.2f} s", "queue"]
    return html.fragment(html.table(head, rows), html.element("div", *key), told)


def chart_row(depth: int, stage: StageStats, seconds: float) -> tuple[str, ...]:
    """The cells of a source or stage."""
    queue = f"{stage.queued / 1e6:,.1f} of {stage.queue_limit / 1e6:,.0f} MB" if stage.queue_limit else ""
    name = html.element("span", "&emsp;" * depth, html.text(stage.title), tip=stage.line)
    bar = times(stage.busy, stage.waited_for_input, stage.waited_for_output, seconds)
    return name, f"{stage.elements_out:,}", f"{stage.bytes_out / 1e6:,.1f}", bar, queue


def times(busy: float, waited_for_input: float, waited_for_output: float, seconds: float) -> str:
    """A bar of what the time went into."""
    amounts = (busy, waited_for_input, waited_for_output)
    tip = ", ".join(f"{told} {amount:,.2f} s" for (_, told), amount in zip(PARTS, amounts, strict=True))
    parts = [(kind, amount) for (kind, _), amount in zip(PARTS, amounts, strict=True)]
    return html.bar(parts, max(seconds, sum(amounts)), tip)


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
