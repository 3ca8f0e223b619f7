"""Random chains beside tf.data: the same elements, in the same order where nothing is shuffled."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipeline.chains import Made, chains, comparable, shards

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return shards(tmp_path_factory.mktemp("chains"))


@given(data=st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_random_chains_mean_the_same(files: list[str], data: st.DataObject) -> None:
    made: Made = data.draw(chains(files, alike_only=True), "chain")
    ours = [comparable(element) for element in made.ours]
    theirs = [comparable(element) for element in made.theirs(tf).as_numpy_iterator()]
    assert ours == theirs if made.ordered else sorted(ours) == sorted(theirs)
    count = made.theirs(tf).cardinality().numpy()
    if count != tf.data.UNKNOWN_CARDINALITY:  # some are known here that are not there
        assert made.ours.cardinality() in (count, tf.data.UNKNOWN_CARDINALITY)
    assert made.ours.cardinality() in (len(ours), tf.data.UNKNOWN_CARDINALITY)
