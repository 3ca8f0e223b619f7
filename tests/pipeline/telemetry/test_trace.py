"""Traces for the Perfetto viewer: JSON in Chrome's trace event format, whole and consistent however a run ends."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from streamrec import Dataset, TFRecordDataset, encode_records
from streamrec.pipeline.telemetry.trace import Trace

Event = dict[str, Any]

FIELDS = {
    "M": {"name", "ph", "pid", "args"},
    "X": {"name", "ph", "pid", "tid", "ts", "dur"},
    "C": {"name", "ph", "pid", "tid", "ts", "args"},
}
"""What the format asks of each kind of event that is written."""


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset[Any]:
    for shard in range(3):
        (tmp_path / f"s-{shard}").write_bytes(encode_records([bytes(84)] * 30_000))
    records = TFRecordDataset(f"{tmp_path}/s-*", num_parallel_reads=3)
    return (
        Dataset.zip(records.batch(500).map(len).prefetch(buffer_bytes=1 << 16), Dataset.range(10**6)).repeat(2).batch(2)
    )


def checked(path: Path) -> list[Event]:
    """The events of a trace, each of them as the format wants it, slices of a track one after the other."""
    events: list[Event] = json.loads(path.read_text())
    tracks: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        assert event.keys() >= FIELDS[event["ph"]]
        assert event["pid"] == 1
        if event["ph"] == "X":
            tracks[event["tid"]].append(event)
        if event["ph"] == "C":
            assert event["args"]["value"] >= 0
    for slices in tracks.values():
        slices.sort(key=lambda event: event["ts"])
        for before, after in zip(slices, slices[1:], strict=False):
            assert before["dur"] >= 0
            assert before["ts"] + before["dur"] <= after["ts"] + 0.01  # microseconds, rounded to a thousandth
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert tracks.keys() <= named
    return events


def test_a_trace_replaces_a_trace_and_nothing_else(dataset: Dataset[Any], tmp_path: Path) -> None:
    data = (tmp_path / "s-0").read_bytes()
    for _ in range(2):
        with dataset.iterate(trace=tmp_path / "run.json") as batches:
            next(batches)
        with pytest.raises(FileExistsError, match="s-0 already exists, and is not a trace: give another name"):
            next(dataset.iterate(trace=tmp_path / "s-0"))
    assert (tmp_path / "s-0").read_bytes() == data


def test_a_run_is_written_as_it_went(dataset: Dataset[Any], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with dataset.iterate(trace=path) as batches:
        count = len(list(batches))
        stats = batches.stats()
    events = checked(path)
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert sorted(names.values()) == sorted(["the consumer", *(stage.title for stage in stats.stages)])
    (mapped,) = (number for number, name in names.items() if name == "map: your function len")
    busy = [event for event in events if event["ph"] == "X" and event["tid"] == mapped and event["name"] == "busy"]
    (row,) = (stage for stage in stats.stages if stage.title == "map: your function len")
    assert sum(event["dur"] for event in busy) / 1e6 == pytest.approx(row.busy, abs=1e-4)
    assert sum(event.get("args", {}).get("elements", 0) for event in busy) == row.elements_out == 360
    (consumer,) = (number for number, name in names.items() if name == "the consumer")
    taken = [event for event in events if event["ph"] == "X" and event["tid"] == consumer and "args" in event]
    assert sum(event["args"]["elements"] for event in taken) == count == 180


def test_counters_are_written(tmp_path: Path) -> None:
    """Of queues that live: with little memory, the one of prefetch does until the last elements are taken."""
    path = tmp_path / "run.json"
    consumed = 0
    numbers_ahead = Dataset.range(1_000_000).prefetch(buffer_bytes=1 << 20).with_options(memory_budget=4 << 20)
    with numbers_ahead.iterate(trace=path) as numbers:
        for _ in numbers:
            consumed += 1
    counters = {event["name"] for event in checked(path) if event["ph"] == "C"}
    assert counters >= {"MB/s", "queue of the consumer, MB", "queue of prefetch, MB"}


def test_a_run_that_is_left_is_whole_too(dataset: Dataset[Any], tmp_path: Path) -> None:
    for _ in dataset.iterate(trace=tmp_path / "left.json"):
        break
    checked(tmp_path / "left.json")
    with dataset.iterate(trace=tmp_path / "closed.json") as batches:
        next(batches)
    checked(tmp_path / "closed.json")


def fails(number: object) -> None:
    raise LookupError(number)


async def test_a_run_that_fails_is_whole_too(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(LookupError):
        async with Dataset.range(3).map(fails).aiterate(trace=path) as elements:
            await anext(elements)
    assert any(event["name"] == "waiting for data" for event in checked(path))


def test_a_place_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Dataset.range(3).iterate(trace=tmp_path / "none" / "run.json")


def test_a_file_ends_at_its_limit(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "run.json", limit=10)
    track = trace.track("a")
    for second in range(100):
        trace.slice(track, "busy", second, second + 1, 0)
    trace.close()
    trace.close()
    assert len(json.loads((tmp_path / "run.json").read_text())) == 1 + 10
