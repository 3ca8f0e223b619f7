"""Names and drawings of sources and stages for people, made from their descriptions."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, Final

from streamrec import html
from streamrec.display import display_text
from streamrec.pipeline.engine.description import Chain, describe_stage, held_by

VERBS: Final = {
    "CyclicBatch": "rebatch",
    "Generated": "from_generator",
    "ParallelMap": "map",
    "Parse": "parse_example",
    "Resample": "rejection_resample",
    "Shards": "TFRecordDataset",
    "Slices": "from_tensor_slices",
}
"""The verbs of descriptions whose class has another name."""

FUNCTIONS: Final = ("function", "scan_func", "class_func", "key_func", "length_of")
"""The fields of descriptions that hold the user's function."""


def title(what: object) -> str:
    """A source or stage as its user knows it.

    It is the verb, and the name of the user's function if it has one.

    >>> from streamrec.pipeline.stages.padding import Padding
    >>> from streamrec.pipeline.stages.batch import PaddedBatch
    >>> from streamrec.pipeline.stages.calling import Map
    >>> title(PaddedBatch(3, Padding())), title(Map(len))
    ('padded_batch', 'map: your function len')
    """
    kind = type(what).__name__
    verb = VERBS.get(kind) or re.sub("(?<=[^_])(?=[A-Z])", "_", kind).lower()
    function = next((getattr(what, name) for name in FUNCTIONS if hasattr(what, name)), None)
    if not callable(function):
        return verb
    return f"{verb}: your function {getattr(function, '__qualname__', type(function).__qualname__)}"


def own_line(what: object) -> str:
    """A description's own line, without those of chains within it and without passwords."""
    return display_text(find_line(what))


def find_line(what: Any) -> str:
    """A description's own line, as it is in the lines of its chain or made of its fields."""
    if not hasattr(what, "lines"):
        return describe_stage(what)
    inner = {line.strip() for chain in find_chains(what) for line in chain.lines()}
    own: list[str] = [line.strip() for line in what.lines() if line.strip() not in inner]
    if own:
        return own[0]
    given = ((field.name, getattr(what, field.name)) for field in fields(what) if field.repr)
    scalars = (f"{name}={value!r}" for name, value in given if not find_chains((value,)))
    return f"{type(what).__name__}({', '.join(scalars)})"


def find_chains(what: object) -> list[Chain]:
    """The chains in a description's fields, in dicts and tuples too."""
    return [part for part in held_by(what) if isinstance(part, Chain)]


def draw_dataset(chain: Chain) -> str:
    """HTML of sources and stages as boxes, in the order in which elements pass."""
    return html.fragment(draw_chain(chain))


def draw_chain(chain: Chain) -> str:
    """HTML of a chain; the chain of its source comes first.

    Several chains are indented, one below the other.
    """
    inner = [draw_chain(part) for part in find_chains(chain.source)]
    boxes = [
        html.element("div", html.box(title(part), own_line(part)))
        for part in (chain.source, *chain.stages)
    ]
    if len(inner) > 1:
        inner = ["".join(html.element("div", part, kind="inner") for part in inner)]
    return html.element("div", "↓", kind="arrow").join([*inner, *boxes])
