"""README and docs/benchmarks.md show what the data in benchmarks/results/ supports, and no more;
and the pure parts of benchmarks. `tests/test_benchmark_harness.py` has the harness.
"""

import doctest
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import against, bars, faults, table, tls
from benchmarks.harness.results import RESULTS
from benchmarks.harness.rounds import Rounds
from benchmarks.scale import shape
from benchmarks.training_rows import figures, row_of, same_load
from tests.pages import ROOT


def results_of(page: str) -> list[list[str]]:
    """The cells of the rows of a page's table of results."""
    lines = (ROOT / page).read_text().splitlines()
    head = lines.index("| work | compared with | speed | streamrec | the other |")
    rows = []
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.mark.parametrize(("page", "count"), [("README.md", 6), ("docs/index.md", 3)])
def test_the_first_pages_show_rows_of_the_table_to_the_digit(page: str, count: int) -> None:
    """Also what each side delivered: the speed is the quotient of the two."""
    rows = [row.cells for row in table.rows()]
    assert len(results_of(page)) == count
    for row in results_of(page):
        assert row in rows


@pytest.mark.parametrize(("page", "count"), [("README.md", 2), ("docs/index.md", 1)])
def test_the_first_pages_show_rows_in_which_streamrec_is_slower(page: str, count: int) -> None:
    slower = [row.cells for row in table.rows() if row.speed is not None and row.speed < 1]
    assert len([row for row in results_of(page) if row in slower]) >= count


def test_the_page_has_the_table_of_the_data() -> None:
    page, made = table.PAGE.read_text(), table.text()
    assert made in page, "run python -m benchmarks.table"
    assert "Except" not in made, "all rows are measured at one commit on one machine"


def test_the_chart_has_the_rows_of_the_data() -> None:
    for name, drawing in bars.files(table.rows()).items():
        assert (table.ASSETS / name).read_text() == drawing, "run python -m benchmarks.table"


def test_a_bar_ends_where_the_ratio_is_and_begins_at_one() -> None:
    slower, faster = (a_row(ours=ours, theirs=2.0, cpu_ratio=None) for ours in (1.0, 4.0))
    [left] = re.findall(r'<rect x="([\d.]+)" y="53" width="([\d.]+)"', bars.draw([slower], "light"))
    [right] = re.findall(r'<rect x="([\d.]+)" y="53" width="([\d.]+)"', bars.draw([faster], "dark"))
    assert float(left[0]) == pytest.approx(bars.place(0.5), abs=0.1)
    assert float(left[0]) + float(left[1]) == pytest.approx(bars.place(1), abs=0.2)
    assert float(right[0]) == pytest.approx(bars.place(1), abs=0.1)
    assert float(right[0]) + float(right[1]) == pytest.approx(bars.place(2), abs=0.2)


def test_every_module_with_data_is_on_the_page() -> None:
    page = table.PAGE.read_text()
    for path in RESULTS.glob("*.json"):
        module = path.stem.removesuffix("_memory")
        assert f"| {module} |" in page or f"benchmarks.{module}" in page, (
            f"docs/benchmarks.md says nothing of {path.name}"
        )


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_data_says_when_on_what_and_with_which_versions_it_was_measured(path: Path) -> None:
    machine = json.loads(path.read_text())["machine"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", machine["date"])
    assert machine["cpu"]
    assert machine["cores"] > 0
    assert re.fullmatch(r"3\.\d+\.\d+", machine["python"])
    assert all(re.match(r"\d+\.\d+", version) for version in machine["packages"].values())
    # data from before the commit was kept says which commit brought it
    commit = machine["recorded_in"] if machine["commit"] == "unknown" else machine["commit"]
    assert re.fullmatch(r"[0-9a-f]{8}\+?", commit)


def a_row(**changed: Any) -> table.Row:
    given = {"module": "m", "work": "w", "peer": "p", "ours": 3.0, "theirs": 2.0, "unit": "MB/s"}
    return table.Row(**{**given, **changed})


@pytest.mark.parametrize(
    ("changed", "speed", "cpu"),
    [
        ({}, 1.5, None),
        ({"measure": "time"}, 2 / 3, None),
        ({"measure": "cpu"}, None, 1.5),
        ({"cpu_ratio": 0.5}, 1.5, 0.5),
    ],
)
def test_speed_and_cpu_are_quotients_of_what_was_delivered(
    changed: Mapping[str, Any], speed: float | None, cpu: float | None
) -> None:
    row = a_row(**changed)
    assert row.speed == pytest.approx(speed)
    assert row.cpu == pytest.approx(cpu)


def test_quotients_are_rounded_in_favour_of_the_other_side() -> None:
    assert a_row(ours=50.9, theirs=1.0, cpu_ratio=0.111).cells[2] == "50"
    assert "| 0.12 |" in str(a_row(cpu_ratio=0.111))
    assert doctest.testmod(table).failed == 0


def loop(steps_s: float, step_seconds: float = 0.01) -> dict[str, float]:
    return {"steps_s": steps_s, "step_seconds": step_seconds, "waited": 0.0, "cpu_cores": 1.0}


def side(name: str, *rounds: tuple[float, float]) -> dict[str, Any]:
    """The row of a side: in each round, its steps a second alone and with a loader."""
    whole = {"peak_mb": 1.0, "runs": 1, "stolen_cores": 0.0}
    runs = [{"pairs": [(loop(alone), loop(loaded))], **whole} for alone, loaded in rounds]
    return row_of(name, [figures(run, 4e6) for run in runs])


def test_a_row_of_training_says_what_was_delivered_and_how_it_spread() -> None:
    row = side("streamrec", (75, 72), (75, 60), (75, 75), (70, 70), (75, 72))
    assert row["asked_mb_s"] == 300
    assert (row["mb_s"], row["mb_s_range"]) == (288, [240, 300])
    assert (row["speed"], row["speed_range"], row["rounds"]) == (0.96, [0.8, 1.0], 5)
    assert row["met"]
    assert not side("streamrec", (75, 70))["met"]


def test_training_is_compared_only_where_all_sides_carried_the_same_load() -> None:
    ours, theirs = side("streamrec", (60, 51)), side("tf.data", (75, 58))
    assert not same_load([ours, theirs])  # 240 MB/s asked of one, 300 of the other
    data = {"mb_s_wanted": 300.0, "rows": [ours, theirs, side("DataLoader", (75, 40))]}
    assert list(table.training({**data, "same_load": False})) == []
    [first, _] = table.training({**data, "same_load": True})
    assert (first.ours, first.theirs) == (204, 232)
    assert same_load([ours, side("tf.data", (62, 58))])


def versions(*pairs: tuple[float, float]) -> Rounds:
    """Rounds of `benchmarks.against`: processor time of the earlier version and of this one."""

    def figures(cpu_s_gb: float) -> dict[str, float]:
        return {"mb_s": 100 / cpu_s_gb, "cpu_s_gb": cpu_s_gb, "peak_mb": 80.0}

    taken = [{"before": figures(before), "now": figures(now)} for before, now in pairs]
    return Rounds(taken=taken, runs=len(taken), stolen_cores=0)


@pytest.mark.parametrize("judged_by", ["cpu", "speed"])
@pytest.mark.parametrize(("factor", "verdict"), [(1.1, "SLOWER"), (1.02, "same"), (0.9, "faster")])
def test_a_version_is_slower_where_the_median_of_its_ratios_is(
    judged_by: str, factor: float, verdict: str
) -> None:
    """One of three rounds was slow for both versions, one for this version only."""
    taken = versions((1.0, factor), (3.0, 3 * factor), (1.0, 2.0))
    row = against.row_of("a row", judged_by, taken)
    assert row["verdict"] == verdict
    assert row["cpu_ratio"] == pytest.approx(factor, abs=0.01)
    assert row["speed_ratio"] == pytest.approx(1 / factor, abs=0.01)
    assert max(row["spread"]) > 1 if judged_by == "cpu" else min(row["spread"]) < 1
    assert against.line_of(row).endswith(verdict)


def test_rows_are_chosen_by_the_beginnings_of_their_names() -> None:
    assert against.chosen(("local", "tls")) == ["tls", "local, 84 B", "local, 110 kB"]
    assert against.chosen(tuple(against.ROWS)) == list(against.ROWS)


@pytest.mark.parametrize("module", [against, bars, faults, tls, shape])
def test_examples_of_benchmarks_are_true(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
