"""The harness of the benchmarks: processes, rounds, ratios, options and data files."""

import doctest
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness import calm, meter, process, program, results, rounds
from benchmarks.harness.program import Names
from tests import benchmark_children as children
from tests.pages import ROOT

HARNESS = sorted((ROOT / "benchmarks" / "harness").glob("*.py"))


def test_a_process_returns_what_the_function_returned() -> None:
    found = process.in_own_process(children.told, side="streamrec", urls=["a", "b"], count=2)
    assert found == {
        "side": "streamrec",
        "executable": sys.executable,
        "urls": ["a", "b"],
        "count": 2,
    }


def test_a_task_may_be_longer_than_a_command_line() -> None:
    """Linux takes 128 KiB for one argument; the URLs of 10,000 shards have more."""
    urls = [f"s3://bucket/{number:040d}" for number in range(10_000)]
    assert process.in_own_process(children.told, side="", urls=urls)["urls"] == urls


def test_a_process_has_the_variables_of_the_benchmarks_and_the_given_ones() -> None:
    variables = process.in_own_process(
        "tests.benchmark_children:variables", environment={"SSL_CERT_FILE": "x"}
    )
    assert variables["TF_CPP_MIN_LOG_LEVEL"] == "3"
    assert variables["SSL_CERT_FILE"] == "x"


@pytest.mark.parametrize(
    ("function", "message"),
    [(children.failing, "ValueError: no shard has this name"), (children.ending, "status 3")],
)
def test_a_process_that_fails_says_which_function_and_why(
    function: Callable[[], None], message: str
) -> None:
    with pytest.raises(process.ProcessError, match=message) as raised:
        process.in_own_process(function)
    assert f"tests.benchmark_children:{function.__name__}" in str(raised.value)


def test_the_time_since_the_start_includes_the_start_of_the_interpreter() -> None:
    assert 0 < process.in_own_process(children.since_start) < 60


def test_the_harness_imports_nothing_of_the_package() -> None:
    """`benchmarks.against` runs it together with an earlier version."""
    modules = ", ".join(f"benchmarks.harness.{path.stem}" for path in HARNESS)
    code = f"import sys, {modules}; print({{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "'benchmarks'" in done.stdout
    assert "'streamrec'" not in done.stdout


def test_a_meter_measures_its_block() -> None:
    with meter.Meter() as measured:
        total = sum(range(1_000_000))
    assert total
    assert 0 < measured.cpu_seconds <= measured.seconds * 1.5
    rates = measured.rates(10**9)
    assert rates["mb_s"] == pytest.approx(1000 / measured.seconds)
    assert rates["cpu_s_gb"] == pytest.approx(measured.cpu_seconds)
    assert measured.each(1000)["us"] == pytest.approx(measured.seconds * 1000)


def test_processor_time_includes_children_that_have_ended() -> None:
    with meter.Meter() as measured:
        subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert measured.cpu_seconds > 0.01


class Clock:
    """Each run takes one second; of some runs the hypervisor steals a share."""

    def __init__(self, shares: list[float]) -> None:
        self.seconds = 0.0
        self.stolen = 0.0
        self.shares = iter(shares)

    def run(self, number: int) -> int:
        self.seconds += 1
        self.stolen += next(self.shares)
        return number

    def calmest(self, wanted: int) -> calm.Calm[int]:
        return calm.calmest(self.run, wanted, lambda: self.stolen, lambda: self.seconds)


@pytest.mark.parametrize(
    ("shares", "kept", "worst"),
    [
        ([0, 0], [0, 1], 0),
        ([0.5, 0, 0], [1, 2], 0),
        ([0, 0.5, 0.02], [0, 2], 0.02),
        ([0.5, 0.4, 0.3, 0.6], [1, 2], 0.4),
    ],
)
def test_runs_that_were_not_calm_are_measured_again(
    shares: list[float], kept: list[int], worst: float
) -> None:
    found = Clock(shares).calmest(2)
    assert found.results == kept
    assert found.runs == len(shares)
    assert found.stolen_cores == pytest.approx(worst)


@given(st.lists(st.floats(0, 2), min_size=10, max_size=10), st.integers(1, 5))
def test_as_many_runs_count_as_are_wanted_and_none_is_worse_than_one_left_out(
    shares: list[float], wanted: int
) -> None:
    found = Clock(shares).calmest(wanted)
    assert len(found.results) == wanted
    assert found.runs <= calm.TRIES * wanted
    left_out = set(range(found.runs)) - set(found.results)
    assert all(shares[number] >= found.stolen_cores - 1e-9 for number in left_out)
    assert found.results == sorted(found.results)


@pytest.fixture
def nothing_stolen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calm, "stolen_seconds", lambda: 0.0)


def sides(log: list[str], **figures: list[float]) -> dict[str, rounds.Side]:
    """Sides that show these figures, one after the other."""

    def side(name: str, values: Iterator[float]) -> rounds.Side:
        def measure() -> dict[str, float]:
            log.append(name)
            return {"mb_s": next(values)}

        return measure

    return {name: side(name, iter(values)) for name, values in figures.items()}


@pytest.mark.usefixtures("nothing_stolen")
def test_sides_take_turns_and_none_is_always_the_first() -> None:
    log: list[str] = []
    rounds.in_turn(sides(log, a=[1, 2, 3], b=[1, 2, 3]), 3)
    assert log == ["a", "b", "b", "a", "a", "b"]


@pytest.mark.usefixtures("nothing_stolen")
def test_a_ratio_is_the_median_of_the_ratios_within_the_rounds() -> None:
    """The second round of the machine was slow for both."""
    found = rounds.in_turn(sides([], a=[100, 20, 110], b=[50, 10, 100]), 3)
    assert found.ratio("mb_s", "a", "b") == 2
    assert found.spread("mb_s", "a", "b") == [1.1, 2]
    assert found.medians("a") == {"mb_s": 100}
    assert found.by_side("mb_s") == {"a": 100, "b": 50}
    assert found.calm == {"runs": 3, "stolen_cores": 0}


@pytest.mark.usefixtures("nothing_stolen")
def test_a_slow_side_is_measured_once_and_belongs_to_each_round() -> None:
    log: list[str] = []
    found = rounds.in_turn(sides(log, a=[10, 20], slow=[5]), 2, once=["slow", "elsewhere"])
    assert log == ["slow", "a", "a"]
    assert found.ratios("mb_s", "a", "slow") == [2, 4]
    assert list(found.taken[0]) == ["a", "slow"]


@pytest.mark.usefixtures("nothing_stolen")
def test_warm_rounds_do_not_count() -> None:
    found = rounds.in_turn(sides([], a=[1, 7]), 1, warm=1)
    assert found.by_side("mb_s") == {"a": 7}


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=9))
def test_a_spread_holds_the_ratio(values: list[float]) -> None:
    taken = [{"a": {"x": value}, "b": {"x": 2.0}} for value in values]
    found = rounds.Rounds(taken=taken, runs=len(taken), stolen_cores=0)
    low, high = found.spread("x", "a", "b")
    assert low <= found.ratio("x", "a", "b") <= high


def command(
    commit: str,
    *,
    rounds: int = 3,
    seconds: float = 0.5,
    only: Names = ("local", "s3"),
    with_shuffle: bool = False,
    note: str = "now",
) -> None:
    """A `main` with a parameter of each kind."""


def test_the_options_of_a_benchmark_are_the_parameters_of_its_main() -> None:
    assert program.options(command, ["3bbac003"]) == {
        "dry": False,
        "commit": "3bbac003",
        "rounds": 3,
        "seconds": 0.5,
        "only": ("local", "s3"),
        "with_shuffle": False,
        "note": "now",
    }
    words = ["main", "--rounds", "1", "--seconds", "2", "--only", "s3", "--with-shuffle"]
    assert program.options(command, [*words, "--note", "before"]) == {
        "dry": False,
        "commit": "main",
        "rounds": 1,
        "seconds": 2.0,
        "only": ("s3",),
        "with_shuffle": True,
        "note": "before",
    }


@pytest.mark.parametrize("module", [program, process, rounds, results])
def test_examples_of_the_harness_are_true(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results are saved instead of the checkout."""
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(results, "commit", lambda: "abcd1234")
    return tmp_path / "results"


@pytest.mark.usefixtures("folder")
def test_a_data_file_says_what_it_was_measured_on() -> None:
    results.save("row", ["numpy"], rounds=3, rows=[{"row": "a", "mb_s": 1.0}])
    data = results.load("row")
    machine = data.pop("machine")
    assert data == {"rounds": 3, "rows": [{"row": "a", "mb_s": 1.0}]}
    assert machine["commit"] == "abcd1234"
    assert set(machine["packages"]) == {"numpy"}
    assert machine["cpu"]
    assert len(machine["date"].split("-")) == 3


def test_a_dry_run_keeps_no_data_and_ends_with_what_main_returns(folder: Path) -> None:
    def measure(*, rounds: int = 3) -> int:
        results.save("row", [], rounds=rounds)
        return rounds

    with pytest.raises(SystemExit, match="7"):
        program.run(measure, ["--rounds", "7", "--dry"])
    assert not (folder / "row.json").exists()
    with pytest.raises(SystemExit, match="1"):
        program.run(measure, ["--rounds", "1"])
    assert results.load("row")["rounds"] == 1


def test_a_partial_run_keeps_the_other_rows_of_this_commit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = [{"row": "b", "n": 2}]
    assert results.with_saved("row", new, "row") == new, "there is no data yet"
    results.save("row", [], rows=[{"row": "a", "n": 1}, {"row": "b", "n": 1}])
    assert results.with_saved("row", new, "row") == [{"row": "a", "n": 1}, {"row": "b", "n": 2}]
    monkeypatch.setattr(results, "commit", lambda: "later")
    assert results.with_saved("row", new, "row") == new
    assert json.loads((folder / "row.json").read_text())["rows"][0]["n"] == 1
