"""The simulation of training at scale, with few of everything; and it finds what breaks its
invariants.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.scale.__main__ import EPOCHS, Simulation
from benchmarks.scale.job import WAYS, Job, check_each_once, serving
from benchmarks.scale.shape import Shape
from streamrec import bridge
from tests.servers.faults import NO_FAULTS


def in_this_process(function: Callable[..., Any], **task: Any) -> Any:
    """Calls a function of the simulation as its process would, without the process."""
    return json.loads(json.dumps(function(**json.loads(json.dumps(task)))))


def test_few_ranks_read_each_record_once() -> None:
    job = Job(shape=Shape(200, 30, 40), ranks=8, workers=2, batch=48)
    rows = Simulation(job, 6, 1, NO_FAULTS, call=in_this_process).run([])
    assert {row["way"]: row["lists"] for row in rows["start"]} == dict(
        zip(WAYS, (1, 0, 0), strict=True)
    )
    read = {row["way"]: row["records"] for row in rows["read"]}
    assert read["distribute"] == pytest.approx(EPOCHS * 6000 / 8, rel=0.05)
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
        check_each_once(np.array(ranges), 9, "these")
    check_each_once(np.array([(5, 9), (0, 5), (3, 3)]), 9, "these")


def test_a_listing_has_no_date_parsed_by_dateutil(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took three quarters of a listing's processor time."""
    monkeypatch.delattr("dateutil.parser.parse")
    job = Job(shape=Shape(1500, 1, 40), ranks=1, workers=1, batch=1)
    with serving(job, NO_FAULTS) as here:
        assert len(bridge.run(here.listing).paths) == 1500
