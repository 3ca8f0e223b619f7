"""How an interleave is planned from the arguments of users."""

import pytest

from streamrec import AUTOTUNE
from streamrec.pipeline.sources.interleave import AUTO_CYCLE, Plan


def test_plans_follow_from_the_arguments_or_are_refused() -> None:
    assert Plan.of(None) == Plan.of(AUTOTUNE) == Plan(AUTO_CYCLE, 1, True)
    assert Plan.of(3, 2, None) == Plan(3, 2, None)
    assert Plan.of(3, 2, None).within(False) == Plan(3, 2, False)
    assert Plan.of(3, 2, True).within(False) == Plan(3, 2, True)
    assert [Plan(length).open_inputs for length in (1, 4, 8, 12, 16)] == [3, 6, 10, 15, 20]
    for arguments in ((0,), (-2,), (1, 0), ("a",), (1, 1, "yes")):
        with pytest.raises((ValueError, TypeError)):
            Plan.of(*arguments)  # type: ignore[arg-type]
