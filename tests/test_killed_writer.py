"""A few writers killed at random moments; `make soak` kills a hundred (tests/soak/writing.py)."""

import pytest

from tests.effort import THOROUGH, thorough
from tests.soak.writing import soak

KILLS = 3 if THOROUGH else 1


@pytest.mark.parametrize("kind", ["s3_store", *thorough("gcs_store", "local")])
def test_a_killed_writer_leaves_nothing_partial_and_can_run_again(request: pytest.FixtureRequest, kind: str) -> None:
    store = None if kind == "local" else request.getfixturevalue(kind)
    seen = soak(kind.removesuffix("_store"), kills=KILLS, seed=4, store=store)
    assert seen.killed == KILLS
