"""What the tests of the example room share."""

from __future__ import annotations

import pytest

from streamrec.example.parsing.reference import ReferenceWalker
from streamrec.example.parsing.walk import Walker
from streamrec.example.parsing.walkers import WALKER

WALKERS: dict[str, Walker] = {"reference": ReferenceWalker(), "native": WALKER}


@pytest.fixture(params=list(WALKERS))
def walker(request: pytest.FixtureRequest) -> Walker:
    """Each of the two walkers in turn."""
    return WALKERS[request.param]
