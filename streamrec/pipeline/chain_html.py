"""What a notebook shows of a Dataset: its stages as boxes."""

from __future__ import annotations

from streamrec import html
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.telemetry.stage_names import held_chains, own_line, title

__all__ = ["dataset_html"]


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
