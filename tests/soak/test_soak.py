"""Short soaks; `make soak` runs them for longer."""

from typing import Any

import pytest

from streamrec import TFRecordDataset
from tests.effort import THOROUGH, example_count, thorough
from tests.servers.real import Store
from tests.soak import reading, training, writing

ROUNDS = 3
KILLS = 2 if THOROUGH else 1


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["s3_store", "gcs_store"])
def test_reading_gives_all_records_and_nothing_twice(
    request: pytest.FixtureRequest, kind: str
) -> None:
    report = reading.soak(request.getfixturevalue(kind), seed=7, rounds=ROUNDS)
    assert report.requests > 32 * ROUNDS


@pytest.mark.parametrize("kind", ["s3", *thorough("gcs")])
def test_a_killed_writer_leaves_nothing_partial_and_can_run_again(
    request: pytest.FixtureRequest, kind: str
) -> None:
    seen = writing.soak(kind, KILLS, 4, request.getfixturevalue(f"{kind}_store"))
    assert seen.killed == KILLS


@pytest.mark.parametrize(("shape", "kills", "ranks"), [("process", 4, 1), ("ranks", 2, 4)])
def test_a_killed_run_sees_what_an_undisturbed_one_sees(shape: str, kills: int, ranks: int) -> None:
    seen = training.soak(shape, kills, seed=3)
    assert seen.kills == kills * ranks
    assert seen.again


@pytest.mark.peer
def test_a_killed_run_with_the_workers_of_a_loader() -> None:
    pytest.importorskip("torchdata")
    assert training.soak("loader", kills=2, seed=5).kills == 2


@pytest.mark.peer
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork")
class TestLoaders:
    @pytest.fixture
    def loaders(self) -> Any:
        pytest.importorskip("torch")
        from tests.soak import loaders

        return loaders

    @pytest.fixture
    def repeated(self, s3_store: Store, loaders: Any) -> Any:
        loaders.put(s3_store, "loaders", [[b"%d" % number for number in range(50)]] * 3)
        records = TFRecordDataset(f"{s3_store.url}/loaders/*", storage_options=s3_store.options)
        return loaders.IterableDataset(records.distribute().batch(4))

    @pytest.mark.parametrize("workers", [2, None])
    def test_each_record_comes_once_an_epoch(
        self, s3_store: Store, loaders: Any, workers: int | None
    ) -> None:
        for number in range(example_count(24) // 2):
            loaders.check(s3_store, f"combination-{workers}-{number}", number, workers)

    def test_loaders_end_when_they_are_left(self, loaders: Any, repeated: Any) -> None:
        for number in range(example_count(60)):
            loaders.repetition(repeated, number)

    def test_programs_end_with_a_loader_open(
        self, s3_store: Store, loaders: Any, repeated: Any
    ) -> None:
        for number in range(3 if THOROUGH else 1):
            loaders.exits(s3_store, "loaders", number)
