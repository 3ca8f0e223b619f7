"""What a notebook shows of statistics: a table with bars of what the time went into."""

from __future__ import annotations

from typing import Final

from streamrec import html
from streamrec.pipeline.telemetry.snapshots import ChainStats, StageStats

__all__ = ["chart"]

PARTS: Final = (("busy", "busy"), ("input", "waited for input"), ("output", "waited for output"))


def chart(chain: ChainStats, consumer: StageStats, bottleneck: str) -> str:
    """A row and a bar for each source and stage, the consumer, and the bottleneck.

    Args:
        chain: The sources and stages.
        consumer: What the consumer took, and how long it was busy and waited.
        bottleneck: What limits the run.
    """
    seconds = consumer.busy + consumer.waited_for_input
    key = [html.element("span", f'<span class="key {kind}"></span>', html.text(told)) for kind, told in PARTS]
    rows = [row(depth, stage, seconds) for depth, stage in chain.rows()]
    rows.append(row(0, consumer, seconds))
    told = html.element("div", "bottleneck: ", html.element("b", html.text(bottleneck)))
    head = ["", "elements", "MB", f"of {seconds:,.2f} s", "queue"]
    return html.fragment(html.table(head, rows), html.element("div", *key), told)


def row(depth: int, stage: StageStats, seconds: float) -> tuple[str, ...]:
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
