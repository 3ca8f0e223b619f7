"""With which probability an element of each class is kept, so that the target is met."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.stages.resample import keep_probabilities

SHARES = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3).map(
    lambda weights: np.array(weights) / sum(weights)
)


@given(target=SHARES, initial=SHARES)
def test_kept_elements_have_the_target_distribution(
    target: np.ndarray[tuple[int], np.dtype[np.float64]],
    initial: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> None:
    kept = keep_probabilities(target, initial)
    shares = initial * kept / (initial * kept).sum()
    np.testing.assert_allclose(shares, target)


def test_the_class_that_is_rarest_for_its_target_is_always_kept() -> None:
    kept = keep_probabilities(np.array([0.5, 0.5]), np.array([0.9, 0.1]))
    np.testing.assert_allclose(kept, [1 / 9, 1.0])


def test_a_class_that_never_comes_has_no_part_in_the_scale() -> None:
    kept = keep_probabilities(np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.5, 0.0]))
    np.testing.assert_allclose(kept, [2 / 3, 1.0, 0.0])


def test_each_row_of_estimates_has_its_own_scale() -> None:
    initial = np.array([[0.5, 0.5], [0.8, 0.2]])
    kept = keep_probabilities(np.array([0.5, 0.5]), initial)
    np.testing.assert_allclose(kept, [[1.0, 1.0], [0.25, 1.0]])
