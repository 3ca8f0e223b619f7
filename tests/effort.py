"""How hard the tests try: `make test` runs what tells most in a few minutes.

- Of a test's combinations of parameters, enough that each value of each parameter occurs; of what
  `EITHER` names, one value for each test, and each for some.
- Of a property, a few drawn examples.
- Nothing that is marked `thorough`: another variant of what is tested anyway.

CI (STREAMREC_THOROUGH=0/16 to 15/16) adds a sixteenth of the tests that these rules leave out, each
day another. STREAMREC_THOROUGH=1 runs everything, with more examples: before a release, and after
changes of the engine.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

ASKED = os.environ.get("STREAMREC_THOROUGH", "")
THOROUGH = ASKED == "1"
"""Whether everything is tried."""

SOON = 4.0
"""Seconds that ending may take on a busy machine, where a tenth of one is usual; what does not end
when it is told to takes five."""

EITHER = {"both_layouts"}
"""Parametrized fixtures that many tests use, so that each test need not run under all their
values."""


def few(most: int) -> int:
    """This many examples if everything is tried; else a sixth of them, but at least five."""
    return most if THOROUGH else max(5, most // 6)


def draws(most: int, *suppressed: HealthCheck) -> settings:
    """`few` drawn examples; no deadline, since how long one takes depends on what else runs
    here.
    """
    return settings(max_examples=few(most), deadline=None, suppress_health_check=suppressed)


def thorough(*values: Any) -> list[Any]:
    """Values of a parameter that are other variants of what is tested anyway."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


def tell_most(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests that are run if not everything is tried, in a mixed order."""
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if f"{mixed(item) % 16}/16" == ASKED:
            yield item
        elif not item.get_closest_marker("thorough"):
            groups[item.nodeid.partition("[")[0]].append(item)
    for group in groups.values():
        met: set[Any] = set()
        for index, item in enumerate(sorted(group, key=mixed)):
            choices = choices_of(item)
            if index == 0 or not choices <= met:
                met |= choices
                yield item


def mixed(item: pytest.Item) -> int:
    """A number that orders tests so that neighbours differ in more than one parameter."""
    return crc32(item.nodeid.encode())


def choices_of(item: pytest.Item) -> set[Any]:
    """The values that a test was given; those that one decorator gives together count as one."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return set()
    left = {name: value for name, value in item.callspec.params.items() if name not in EITHER}
    found: set[Any] = set()
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        found.add(tuple((name.strip(), id(left.pop(name.strip(), None))) for name in names))
    return found | {(name, id(value)) for name, value in left.items()}


OTHER_CLIENT = os.environ.get("STREAMREC_OTHER_CLIENT") == "1"
"""Whether these tests run with other clients than the newest (`make test-s3`)."""

newest = pytest.mark.skipif(
    OTHER_CLIENT, reason="of the newest client, in whose environment all tests run"
)
"""For tests that rest on private details of the newest client."""
