"""The simulation of training at scale, with few of everything; and it finds what breaks its
invariants.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.scale import __main__ as tables
from benchmarks.scale.job import WAYS, Job, serving
from benchmarks.scale.shape import check_each_once
from streamrec import bridge
from tests.servers.faults import NO_FAULTS


def in_this_process(function: Callable[..., Any], **task: Any) -> Any:
    """Calls a function of the simulation as its process would, without the process."""
    return json.loads(json.dumps(function(**json.loads(json.dumps(task)))))


def test_few_ranks_read_each_record_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "in_own_process", in_this_process)
    monkeypatch.setattr(tables, "SAMPLE", 1)
    job = Job(shards=200, records=30, ranks=8, workers=2, batch=48)
    rows = defaultdict(list)
    for table, row in tables.simulate(job, [], NO_FAULTS):
        rows[table].append(row)
    assert {row["way"]: row["lists"] for row in rows["start"]} == dict(
        zip(WAYS, (1, 0, 0), strict=True)
    )
    read = {row["way"]: row["records"] for row in rows["read"]}
    assert read["distribute"] == pytest.approx(tables.EPOCHS * 6000 / 8, rel=0.05)
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
    job = Job(shards=1500, records=1, ranks=1, workers=1, batch=1)
    with serving(job, NO_FAULTS) as here:
        assert len(bridge.run(here.listing).paths) == 1500
