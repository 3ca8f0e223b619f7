"""`streamrec bench`: what it will read, what it has read, where it stops, and what fails a run."""

import csv
import io
import re
from pathlib import Path

import click
import pytest

from streamrec.cli.bench_chart import curves_svg
from streamrec.cli.sources import Item
from streamrec.cli.sweep import SIZES, BenchPlan, Condition, Measured, Sweep
from streamrec.storage.latency import LatencyHistogram
from tests.cli.conftest import CommandLine


def measurement(rate: float, seconds: float = 0.05) -> Measured:
    """A measurement with this many MB/s, and requests that all took so long."""
    latency = LatencyHistogram()
    latency.observe(seconds)
    return Measured(
        nbytes=int(rate * 1e6),
        seconds=1.0,
        cpu_seconds=0.5,
        first_byte=latency.distribution(),
        requests=3,
        rates=(rate,),
    )


def sweep(rates: dict[int, float]) -> Sweep:
    """A sweep in which all sizes of requests are as fast."""
    cells = {(number, name): measurement(rate) for number, rate in rates.items() for name in SIZES}
    return Sweep(objects=[Item(path="a", size=10**6)], cells=cells)


def test_a_plan_says_what_it_reads_at_most() -> None:
    plan = BenchPlan(connections=(1, 2), seconds=0.5, repeats=3, budget=10**9)
    assert plan.measurements == 24
    assert plan.share * (plan.measurements + 4) <= plan.budget
    said = str(plan)
    assert said.startswith(f"reads at most 1 GB in at most {plan.most_requests:,} GETs")
    assert said.endswith("for at most 13 s")


def test_speed_that_still_doubles_has_no_knee_yet() -> None:
    assert sweep({8: 100, 16: 200, 32: 390}).grows
    assert not sweep({8: 100, 16: 300, 32: 310}).grows
    assert not sweep({32: 310}).grows
    assert not sweep({4: 900, 16: 100, 32: 390}).grows


def test_the_plot_has_axes_with_numbers() -> None:
    drawn = curves_svg(sweep({1: 100, 64: 400}))
    assert re.findall(r">([\d,]+)</text>", drawn) == ["1", "64", "0", "100", "200", "300", "400"]


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("p99 > 40ms", True),
        ("p99>0.04s", True),
        ("p50 > 60", False),
        ("mb_s < 200", True),
        ("mb_s <= 50 MB/s", False),
        ("cpu_s_gb >= 5", True),
    ],
)
def test_a_condition_fails_a_run_that_meets_it(text: str, fails: bool) -> None:
    failure = Condition.parse(text).failure(measurement(100))
    assert (failure is not None) == fails


@pytest.mark.parametrize("text", ["", "p98 > 1", "p99", "p99 = 1", "p99 > x", "> 80ms"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="p50, p90, p99, mb_s, cpu_s_gb"):
        Condition.parse(text)


def test_a_run_stays_within_its_budget_and_says_so(shard: Path, cli: CommandLine) -> None:
    done = cli.succeeds(
        "bench", "--json", "--seconds", "5", "--budget", "4MB", "--connections", "2,1", shard
    )
    assert re.search(r"streamrec: reads at most 4 MB in at most [\d,]+ GETs \(", done.err)
    found = re.search(r"streamrec: read about ([\d.]+) MB, .* in about ([\d,]+) GETs", done.err)
    assert found is not None
    assert float(found[1]) < 4 + 8 * shard.stat().st_size / 1e6  # each reads one object at least
    announced = re.search(r"at most ([\d,]+) GETs", done.err)
    assert announced is not None
    assert int(found[2].replace(",", "")) <= int(announced[1].replace(",", ""))
    assert sorted({item["connections"] for item in done.json["measurements"]}) == [1, 2]


def test_figures_come_as_csv_with_their_spread(shard: Path, cli: CommandLine) -> None:
    options = ["--seconds", "0.05", "--connections", "1", "--repeats", "3", "-q"]
    done = cli.succeeds("bench", "--csv", *options, shard)
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [int(row["request_bytes"]) for row in rows] == list(SIZES.values())
    for row in rows:
        assert float(row["least_mb_s"]) <= float(row["mb_s"]) <= float(row["most_mb_s"])
        assert int(row["requests"]) > 0
    assert done.err == ""


def test_a_limit_that_is_passed_is_the_exit_code(shard: Path, cli: CommandLine) -> None:
    options = ["--seconds", "0.05", "--connections", "1"]
    done = cli.fails(
        1, "mb_s is", "bench", *options, "--fail-if", "mb_s > 0", "--fail-if", "p99 < 0", shard
    )
    assert "--fail-if has mb_s > 0 (MB/s)" in done.err
    assert "p99 is" not in done.err
    cli.fails(2, "'p97 > 1': write one of", "bench", "--fail-if", "p97 > 1", shard)
