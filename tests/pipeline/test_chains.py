"""Random chains: each resumes at random places. `--hypothesis-profile=many` runs thousands of
them.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamrec.pipeline.engine.states import state_of
from tests.pipeline.chains import ChainOfBoth, chains, shards
from tests.servers.resuming import run

pytestmark = pytest.mark.usefixtures("both_layouts")

ENOUGH = 90
"""Chains may repeat what they repeat: at most this many elements of one are looked at."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return shards(tmp_path_factory.mktemp("chains"))


@pytest.mark.timeout(3600)  # for thousands of chains; a hundred take seconds
@given(data=st.data())
@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_random_chains_resume_anywhere(files: list[str], data: st.DataObject) -> None:
    """From a random place, and once more from a random place after that, within any budget."""
    made: ChainOfBoth = data.draw(chains(files), "chain")
    budget = data.draw(st.sampled_from([1 << 28, 1 << 16, 1 << 13]), "budget")
    dataset = made.ours.with_options(memory_budget=budget)
    position = {
        "seed": data.draw(st.integers(0, 9), "seed")
    }  # of what has none: failures come again
    state = state_of(dataset.chain, 0, position)
    elements, states = run(dataset, state, ENOUGH)
    first = data.draw(st.integers(0, len(elements)), "first")
    rest, more = run(dataset, states[first], ENOUGH - first)
    assert rest == elements[first:]
    second = data.draw(st.integers(0, len(rest)), "second")
    assert run(dataset, more[second], ENOUGH - first - second)[0] == elements[first + second :]
