"""States: the JSON of `state_dict()`, and checks that a saved state belongs to a pipeline.

A state holds the lines of its pipeline, a position, and for file names their number, a digest of
all, and a sketch: six bits of a digest of each name, or of each group of names if there are very
many. So a message can name the first name that differs, although the state holds no names.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import zip_longest
from typing import Any, Final

from streamrec import arguments
from streamrec.display import mask_name
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.positions import Position, Positions
from streamrec.pipeline.engine.description import Chain, parts_of

FORMAT = 2
"""The version of states: a later release reads it, or explains why it does not."""

FEW: Final = 4
"""How many names are listed at most."""


def format_names(names: Sequence[str]) -> str:
    """Names for people, with a digest if not all names are listed.

    >>> format_names(["a", "b"]), format_names([f"x-{number}" for number in range(9000)])
    ("['a', 'b']", "['x-0', 'x-1', 'x-2', ... 9,000 names, digest 2a0f9fca1862d1e2]")
    """
    few = len(names) <= FEW
    first = [mask_name(name) for name in names[: FEW if few else FEW - 1]]
    names = identities(names)
    if few and first == names:
        return repr(first)
    digest = blake2b("\\0".join(names).encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return (
        f"[{', '.join(map(repr, first))}, {'' if few else '... '}{len(names):,} names, digest "
        f"{digest}]"
    )


def sketch(names: Sequence[str]) -> str:
    """A character for each name, or for each group of names of equal size."""
    return "".join(map(character, group_names(identities(names))))


def identities(names: Sequence[str]) -> list[str]:
    """The names without passwords and tokens, so that changing these does not change the state."""
    return [mask_name(name, unknown=False) for name in names]


def group_names(names: Sequence[str]) -> list[Sequence[str]]:
    """Names in at most 2**14 groups of equal size, so that a sketch has at most 16 KiB."""
    size = -(-len(names) // (1 << 14)) or 1
    return [names[first : first + size] for first in range(0, len(names), size)]


def character(names: Sequence[str]) -> str:
    """Six bits of the names' digest, as one character of base64."""
    digest = blake2b("\\0".join(names).encode(errors="surrogateescape"), digest_size=3).digest()
    return b64encode(digest)[:1].decode()


def first_difference(saved: str, names: Sequence[str]) -> str:
    """Describes the first name that differs from those of a saved sketch.

    >>> first_difference(sketch(["a", "b", "c"]), ["a", "x", "c"])
    "the first that differs is number 1, 'x'"
    """
    groups = group_names(identities(names))
    for index, (was, group) in enumerate(zip_longest(saved, groups)):
        if group is None:
            return f"there are {len(names):,} now, which is fewer"
        if was is None:
            return f"number {index * len(groups[0]):,}, {mask_name(group[0])!r}, is new"
        if was != character(group):
            first = index * len(groups[0])
            several = f"among numbers {first:,} to {first + len(group) - 1:,}"
            one = f"number {first:,}, {mask_name(group[0])!r}"
            return f"the first that differs is {one if len(group) == 1 else several}"
    return "some of them differ"


def state_of(chain: Chain, epoch: int, position: Position) -> dict[str, Any]:
    """A state as JSON.

    It holds the pipeline, a sketch of file names, a position, and a digest of all these.
    """
    state = {
        "format": FORMAT,
        "pipeline": list(chain.lines()),
        "names": [sketch(names) for names in all_names(chain)],
        "epoch": epoch,
        "position": position,
    }
    return {**state, "digest": digest_state(state)}


def state_at(
    chain: Chain, epoch: int, positions: Positions, index: int, seed: int
) -> dict[str, Any]:
    """The state before an element of a chunk."""
    return state_of(chain, epoch, {**positions.at(index), "seed": seed})


def position_of(chain: Chain, state: Any) -> Position:
    """The position in a saved state.

    Raises a PositionMismatchError that says how the state's pipeline differs.
    """
    check_state(state)
    saved: Sequence[str] = state["pipeline"]
    ours = list(chain.lines())
    if saved != ours:
        was, now = next(
            pair for pair in zip_longest(saved, ours, fillvalue="nothing") if pair[0] != pair[1]
        )
        names = zip(state["names"], all_names(chain), strict=False)
        differs = next(
            (f" ({first_difference(was, now)})" for was, now in names if was != sketch(now)), ""
        )
        raise PositionMismatchError(
            f"this state was saved by another pipeline, with {was} where this one has {now}"
            f"{differs}: resume with the pipeline that saved it, or start over without the state"
        )
    position: Position = state["position"]
    return position


def check_state(state: Any) -> None:
    """Refuses values that are not states, and states that were changed."""
    if not isinstance(state, Mapping) or "format" not in state:
        is_text = isinstance(state, str | bytes)
        advice = "; json.loads() reads one that was saved as JSON" if is_text else ""
        raise PositionMismatchError(
            f"the state is {arguments.describe_value(state)}: it must be a dict that "
            f"`state_dict()` returned, with a 'format'{advice}"
        )
    if type(state["format"]) is not int:
        raise PositionMismatchError(
            "the state's 'format' is not a number: pass what `state_dict()` returned, unchanged"
        )
    if state["format"] != FORMAT:
        advice = "update streamrec" if state["format"] > FORMAT else "start over without it"
        raise PositionMismatchError(
            f"this state has format {state['format']!r}, but this release of streamrec reads "
            f"format {FORMAT}: {advice}"
        )
    # Compared after the format, since another format may have another digest.
    digested = {key: value for key, value in state.items() if key != "digest"}
    if state.get("digest") != digest_state(digested):
        raise PositionMismatchError(
            "this state was changed since it was saved: a value differs or is missing; use another "
            "state, or start over without it"
        )


def start_of_next_epoch(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state before the first element of the next epoch."""
    following = {
        **state,
        "epoch": state["epoch"] + 1,
        "position": {"seed": state["position"]["seed"]},
    }
    del following["digest"]
    return {**following, "digest": digest_state(following)}


def digest_state(state: Mapping[str, Any]) -> str:
    """A digest of a state, the same after JSON and back."""
    try:
        text = json.dumps(state, sort_keys=True, separators=(",", ":"), default=repr)
    except (RecursionError, TypeError, ValueError) as error:
        raise PositionMismatchError(
            f"this state is not JSON ({type(error).__name__}): pass the unchanged result of "
            "`state_dict()`"
        ) from error
    return blake2b(text.encode(), digest_size=8).hexdigest()


def all_names(chain: Chain) -> Iterator[Sequence[str]]:
    """The file names of all sources in a chain, in order."""
    for part in parts_of(chain):
        if (names := getattr(part, "filenames", None)) is not None:
            yield names
