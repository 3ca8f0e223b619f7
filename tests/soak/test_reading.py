"""The reading soak, for as long as a test may take; `make soak` goes on for longer."""

from collections.abc import Iterator

import pytest

from tests.servers.real import Store
from tests.servers.requestlog import Entry
from tests.soak.reading import Soak, unjustified

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


def read(start: int, promised: int, sent: int, fault: str = "") -> Entry:
    span = f"bytes={start}-"
    return Entry(0, 0.0, 0, "read", "GET", "/b/k", "b/k", span, promised=promised, sent=sent, status=206, fault=fault)


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ([read(0, 10, 10)], []),
        ([read(0, 10, 4, "reset"), read(4, 6, 6)], []),
        ([read(0, 10, 4, "reset"), read(5, 5, 5)], [1]),
        ([read(0, 10, 10), read(0, 10, 10)], [1]),
        ([read(0, 10, 10), read(10, 10, 10)], []),
        ([read(4, 6, 0, "unavailable"), read(4, 6, 6)], []),
        ([read(0, 10, 5, "reset"), read(5, 5, 2, "reset"), read(7, 3, 3), read(3, 7, 7)], [3]),
    ],
)
def test_the_judge(entries: list[Entry], wrong: list[int]) -> None:
    assert unjustified(entries) == [entries[index] for index in wrong]
