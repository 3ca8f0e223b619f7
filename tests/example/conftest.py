"""What the tests of the example room share."""

from __future__ import annotations

import pytest

from streamrec.example.parsing.native import NATIVE, NativeWalker
from tests.oracle.parsing import ReferenceWalker

WALKERS: dict[str, NativeWalker] = {"reference": ReferenceWalker(), "native": NATIVE}


@pytest.fixture(params=list(WALKERS))
def walker(request: pytest.FixtureRequest) -> NativeWalker:
    """Each of the two walkers in turn."""
    return WALKERS[request.param]
