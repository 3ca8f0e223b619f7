"""The simulation of training at scale, with few of everything; and it finds what breaks its
invariants.
"""

import numpy as np
import pytest

from benchmarks import scale
from benchmarks.scale_store import Shape
from streamrec import bridge
from tests.servers.faults import NO_FAULTS


def test_few_ranks_read_each_record_once() -> None:
    job = scale.Job(Shape(200, 30, 40), "", "", 8, 2, 48)
    rows = scale.simulate(job, [], 6, 1, scale.child, NO_FAULTS)
    assert {row["way"]: row["lists"] for row in rows["start"]} == dict(
        zip(scale.WAYS, (1, 0, 0), strict=True)
    )
    read = {row["way"]: row["records"] for row in rows["read"]}
    assert read["distribute"] == pytest.approx(scale.EPOCHS * 6000 / 8, rel=0.05)
    assert "reader 0 of 12" in next(row["refused"] for row in rows["read"] if "refused" in row)
    [changed] = [row for row in rows["plan"] if "repeated_by_restart" in row]
    assert changed["repeated"] == 0
    read = [row["times_the_data"] for row in rows["plan"] if row["way"] == "global_shuffle"]
    assert read == pytest.approx([1.0] * 4, abs=0.1)


@pytest.mark.parametrize(
    "ranges", [[(0, 5), (6, 9)], [(0, 5), (4, 9)], [(0, 5), (5, 8)], [(1, 9)], [(0, 9), (3, 4)]]
)
def test_a_record_that_comes_twice_or_never_is_found(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(RuntimeError, match="not each record once"):
        scale.check_each_once(np.array(ranges), 9, "these")
    scale.check_each_once(np.array([(5, 9), (0, 5), (3, 3)]), 9, "these")


def test_a_listing_has_no_date_parsed_by_dateutil(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took three quarters of a listing's processor time."""
    monkeypatch.delattr("dateutil.parser.parse")
    with scale.serving(scale.Job(Shape(1500, 1, 40), "", "", 1, 1, 1), NO_FAULTS) as job:
        assert len(bridge.run(job.listing).paths) == 1500
