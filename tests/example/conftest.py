"""What the tests of the example room share."""

from __future__ import annotations

import pytest

from streamrec.example.parsing.native import NATIVE
from streamrec.example.parsing.walk import Walker
from tests.oracle.parsing import ReferenceWalker

WALKERS: dict[str, Walker] = {"reference": ReferenceWalker(), "native": NATIVE}


@pytest.fixture(params=list(WALKERS))
def walker(request: pytest.FixtureRequest) -> Walker:
    """Each of the two walkers in turn."""
    return WALKERS[request.param]
