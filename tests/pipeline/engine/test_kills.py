"""Training runs that are killed see what an undisturbed run sees; `make soak` kills them fifty times."""

import pytest

from tests.soak.training import soak


@pytest.mark.parametrize(("shape", "ranks"), [("process", 1), ("ranks", 4)])
def test_a_killed_run_sees_what_an_undisturbed_one_sees(shape: str, ranks: int) -> None:
    seen = soak(shape, kills=4, seed=3)
    assert seen.kills == 4 * ranks
    assert seen.again


@pytest.mark.peer
def test_through_the_workers_of_a_loader() -> None:
    pytest.importorskip("torchdata")
    assert soak("loader", kills=2, seed=5).kills == 2
