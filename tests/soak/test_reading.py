"""The reading soak, for as long as a test may take; `make soak` goes on for longer."""

from collections.abc import Iterator

import pytest

from tests.servers.real import Store
from tests.soak.reading import Soak

ROUNDS = 3


@pytest.fixture(params=["s3_store", "gcs_store"])
def soak(request: pytest.FixtureRequest) -> Iterator[Soak]:
    store: Store = request.getfixturevalue(request.param)
    with Soak(store, seed=7) as soak:
        yield soak


@pytest.mark.thorough
def test_all_records_and_nothing_twice(soak: Soak) -> None:
    for _ in range(ROUNDS):
        soak.round()
    assert soak.report.rounds == ROUNDS
    assert soak.report.faults.keys() >= {"reset", "unavailable", "stall", "slow"}
    assert soak.report.requests > 32 * ROUNDS
