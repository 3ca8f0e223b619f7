"""What the tests of the example room share: the walk in C, and in plain Python."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streamrec.example import parse
from tests.oracle import parsing as oracle

WALKS = ("reference", "native")


@contextmanager
def walking(walk: str) -> Iterator[None]:
    """Parsing by one of the two walks."""
    with pytest.MonkeyPatch.context() as patch:
        if walk == "reference":
            patch.setattr(
                parse,
                "walk_examples",
                lambda *walked, **how: (oracle.walk_examples(*walked, **how), 0),
            )
            patch.setattr(parse, "walk_sequences", oracle.walk_sequences)
        yield


@pytest.fixture(scope="module", params=WALKS)
def walk(request: pytest.FixtureRequest) -> Iterator[str]:
    with walking(request.param):
        yield request.param
