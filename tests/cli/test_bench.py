"""`streamrec bench`: what it will read, what it has read, where it stops, and what fails a run."""

import asyncio
import csv
import gzip
import io
import re
import sys
from collections import Counter
from collections.abc import Iterator
from os import urandom
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
from streamrec.cli.bench_chart import curves_svg
from streamrec.cli.reading import SAMPLE_BYTES, take_sample
from streamrec.cli.sources import Item
from streamrec.cli.sweep import SIZES, BenchPlan, Condition, Measured, Sweep
from tests.cli.conftest import CommandLine
from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.objectstore import ObjectStore


def measurement(rate: float, seconds: float = 0.05) -> Measured:
    """A measurement with this many MB/s, and requests that all took so long."""
    return Measured(
        nbytes=int(rate * 1e6),
        seconds=1.0,
        cpu_seconds=0.5,
        first_byte=[seconds],
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
    said = str(plan)
    assert said.startswith(f"reads about 1 GB at most, in {plan.most_requests:,} GETs at most (")
    assert said.endswith("for about 13 s")


@given(
    st.lists(st.integers(1, 256), min_size=1, max_size=6, unique=True),
    st.integers(1, 5),
    st.integers(10**8, 10**11),
    st.sampled_from([(), ("s3fs",), ("s3fs", "obstore")]),
)
def test_all_measurements_together_are_within_the_budget(
    connections: list[int], repeats: int, budget: int, against: tuple[str, ...]
) -> None:
    plan = BenchPlan(connections=connections, repeats=repeats, budget=budget, against=against)
    numbers = [*connections, *[max(connections)] * plan.sides]
    try:
        plan.check(1 << 30)
    except click.UsageError:
        return  # it does not begin
    read = repeats * sum(plan.requests(n, size) * size for n in numbers for size in SIZES.values())
    # One request a measurement is more than a share that is smaller than it.
    assert read <= 2 * (plan.budget - plan.dataset_bytes)
    if plan.caution is None:
        assert read + plan.dataset_bytes <= plan.budget
        assert all(plan.requests(n, size) >= n for n in numbers for size in SIZES.values())


def test_a_budget_that_is_too_small_for_all_connections_says_which_is_enough() -> None:
    plan = BenchPlan(connections=(1, 64), budget=200 * 10**6)
    warning = plan.caution
    assert warning is not None
    enough = re.search(r"--budget (\d+)MB would be enough", warning)
    assert enough is not None
    assert BenchPlan(connections=(1, 64), budget=int(enough[1]) * 10**6).caution is None


def test_a_budget_of_less_than_a_request_each_is_refused(tmp_path: Path, cli: CommandLine) -> None:
    path = tmp_path / "large.tfrecord"
    path.write_bytes(streamrec.encode_records([bytes(5 << 20)]))
    cli.fails(2, "give at least", "bench", "--budget", "4MB", path)


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
def test_an_unknown_condition_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(click.BadParameter, match="p50, p90, p99, mb_s, cpu_s_gb"):
        Condition.parse(text)


def test_a_run_stays_within_its_budget_and_says_so(shard: Path, cli: CommandLine) -> None:
    done = cli.succeeds(
        "bench", "--json", "--seconds", "5", "--budget", "4MB", "--connections", "2,1", shard
    )
    assert re.search(r"streamrec: reads about 4 MB at most, in [\d,]+ GETs", done.err)
    found = re.search(r"streamrec: read about ([\d.]+) kB, .* in about ([\d,]+) GETs", done.err)
    assert found is not None
    assert float(found[1]) < 4000
    announced = re.search(r"in ([\d,]+) GETs at most", done.err)
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


# A store of its own, and other clients.

QUICK = ("--seconds", "0.05", "--connections", "2", "-q", "-o")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    """A store with four objects of 6 MB in the bucket `b`."""
    (tmp_path / "root" / "b").mkdir(parents=True)
    frames = streamrec.encode_records([bytes(200_000)] * 30)
    for number in range(4):
        (tmp_path / "root" / "b" / f"s-{number}.tfrecord").write_bytes(frames)
    with ObjectStore(tmp_path / "root", NO_FAULTS) as running:
        yield running


def options_at(store: ObjectStore, url: str) -> list[str]:
    """The options for the simulated store."""
    unsigned = "anon=true" if url.startswith("s3") else "token=anon"
    return [*QUICK, unsigned, "-o", f"endpoint_url={store.url}"]


@pytest.mark.parametrize(
    ("url", "clients"), [("s3://b/", ["s3fs", "obstore"]), ("gs://b/", ["gcsfs", "obstore"])]
)
def test_other_clients_make_the_same_requests(
    store: ObjectStore, cli: CommandLine, url: str, clients: list[str]
) -> None:
    against = [word for name in clients for word in ("--against", name)]
    done = cli.succeeds("bench", "--json", *options_at(store, url), *against, url)
    compared = done.json["against"]
    labels = list(dict.fromkeys(row["client"] for row in compared))
    assert [label.split()[0] for label in labels] == ["streamrec", *clients]
    assert all(label.split()[1][0].isdigit() for label in labels)
    for size in SIZES.values():
        rows = [row for row in compared if row["request_bytes"] == size]
        assert [row["client"] for row in rows] == labels
        for row in rows:
            assert row["connections"] == done.json["knee"]
            assert row["requests"] > 0
            assert row["mb_per_second"] > 0
            times = row["request_seconds"]
            assert 0 < times["0.5"] <= times["0.9"] <= times["0.99"]
    # The store saw the first range from the sweep and from each side, whole.
    assert store.wait_idle()
    ranges = Counter((entry.object, entry.start, entry.sent) for entry in store.log)
    assert ranges["b/s-0.tfrecord", 0, 4 << 20] >= 2 + len(clients)


def test_the_table_names_the_clients_and_says_who_is_faster(shard: Path, cli: CommandLine) -> None:
    done = cli.succeeds("bench", *QUICK[:-1], "--against", "obstore", shard)
    table = done.out.partition("requests of   client")[2]
    assert "request 50 %" in table
    assert table.count("obstore ") == len(SIZES) + 1
    assert re.search(r"requests of .*: streamrec has [\d.]+ times the speed of obstore", table)


def test_a_client_that_does_not_fit_the_url_is_refused_first(shard: Path, cli: CommandLine) -> None:
    said = "--against s3fs reads s3://, not"
    done = cli.fails(2, said, "bench", "--against", "s3fs", shard)
    assert "use obstore" in done.err
    assert "MB/s" not in done.out


def test_a_client_that_is_not_installed_is_named(
    shard: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    cli.fails(2, "pip install obstore", "bench", "--against", "obstore", shard)


def test_an_option_without_counterpart_is_named(store: ObjectStore, cli: CommandLine) -> None:
    options = [*options_at(store, "s3://b/"), "-o", "requester_pays=true"]
    said = "no counterpart of the storage option 'requester_pays'"
    cli.fails(2, said, "bench", *options, "--against", "obstore", "s3://b/")


def test_a_client_that_cannot_read_fails_with_its_own_words(
    shard: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no https://me:secret@host")

    monkeypatch.setattr("obstore.get_range_async", fail)
    done = cli.fails(3, "failed (RuntimeError: no", "bench", "--against", "obstore", shard)
    assert "leave out --against obstore" in done.err
    assert "secret" not in done.err


# What slow stores would show wrongly.


def test_slow_connections_count_each_at_its_own_speed(store: ObjectStore, cli: CommandLine) -> None:
    store.faults = Faults(first_byte=0.0, jitter=0.0, rate=4e6)
    options = ["--connections", "1,4", "--seconds", "0.2"]
    done = cli.succeeds("bench", "--json", *options, *options_at(store, "s3://b/")[-4:], "s3://b/")
    speed = {
        (row["connections"], row["request_bytes"]): row["mb_per_second"]
        for row in done.json["measurements"]
    }
    # Each request of 4 MiB takes a second, five times as long as the measurement.
    assert 2 < speed[1, 4 << 20] < 8
    assert speed[4, 4 << 20] > 2.5 * speed[1, 4 << 20]


def test_a_store_that_throttles_is_said_to(store: ObjectStore, cli: CommandLine) -> None:
    store.faults = Faults(first_byte=0.0, jitter=0.0, unavailable=0.2)
    options = options_at(store, "s3://b/")
    done = cli.succeeds("bench", *options, "--against", "obstore", "s3://b/")
    assert re.search(r"the store asked \d+ times for fewer requests", done.out)


def test_a_sample_of_a_large_shard_is_no_more_than_it_says(
    tmp_path: Path, store: ObjectStore
) -> None:
    large = tmp_path / "root" / "b" / "large.tfrecord"
    large.write_bytes(streamrec.encode_records([bytes(200_000)] * 300))
    options = {"anon": True, "endpoint_url": store.url}
    url = "s3://b/large.tfrecord"
    item = Item(path=url, size=large.stat().st_size, storage_options=options)
    sample = asyncio.run(take_sample([item]))
    assert sum(map(len, sample.records)) >= SAMPLE_BYTES
    assert store.wait_idle()
    assert store.counters.sent < SAMPLE_BYTES + (1 << 20)


def test_a_sample_of_a_large_compressed_shard_is_its_beginning(
    tmp_path: Path, store: ObjectStore
) -> None:
    large = tmp_path / "root" / "b" / "large.tfrecord.gz"
    large.write_bytes(
        gzip.compress(streamrec.encode_records([urandom(200_000) for _ in range(40)]), 1)
    )
    options = {"anon": True, "endpoint_url": store.url}
    item = Item(path="s3://b/large.tfrecord.gz", size=large.stat().st_size, storage_options=options)
    sample = asyncio.run(take_sample([item]))
    assert sample.compressions == ("GZIP",)
    assert sum(map(len, sample.records)) >= SAMPLE_BYTES
