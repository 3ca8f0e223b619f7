"""Progress and traces: the line in a terminal, a notebook and a plain stream; spans of what a run
does.
"""

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from streamrec import Dataset, TFRecordDataset
from streamrec.errors import install_command
from streamrec.pipeline import StageStats, Stats
from streamrec.pipeline.telemetry.progress import Display, PlainDisplay, format_line
from streamrec.pipeline.telemetry.stats import ChainStats
from streamrec.pipeline.telemetry.trace import Trace
from streamrec.storage import Snapshot
from tests.runs import write_shards

ROOT = Path(__file__).parents[3]


def stats(seconds: float, waited: float) -> Stats:
    """Of a run that reads 10 elements of 1 MB a second."""
    count = int(10 * seconds)
    source = StageStats(
        title="range",
        line="Range()",
        elements_out=count,
        bytes_out=count * 10**6,
        busy=waited,
    )
    return Stats(
        elements=count,
        bytes=0,
        consumer_waited=waited,
        consumer_busy=seconds - waited,
        queued=0,
        queue_limit=10,
        chain=ChainStats((source,), seconds),
        storage=Snapshot({}, ()),
    )


def test_the_progress_line_has_elements_speed_waiting_and_bottleneck() -> None:
    expected = "streamrec: 40 elements (40 records read), 10.0 MB/s, waited 50%, bottleneck: range"
    assert format_line(stats(4.0, 2.0), None, 0.0) == expected
    assert format_line(stats(0.0, 0.0), None, 0.0).endswith(
        "0.0 MB/s, waited 0%, bottleneck: nothing yet"
    )


def test_speed_and_bottleneck_are_of_the_last_seconds() -> None:
    now, lines = [0.0], []
    display = Display(lambda: stats(now[0], min(now[0], 10.0)), lambda: now[0])
    for second in range(30):
        now[0] = float(second)
        lines.append(display.line())
    assert "waited 100%, bottleneck: range" in lines[9]
    assert (
        lines[29]
        == "streamrec: 290 elements (290 records read), 10.0 MB/s, waited 0%, bottleneck: the consumer"  # noqa: E501
    )


def test_plain_lines_come_now_and_then() -> None:
    now, stream = [0.0], io.StringIO()
    plain = PlainDisplay(lambda: stats(now[0], 0.0), stream, lambda: now[0])
    plain.close()
    assert stream.getvalue() == ""
    plain.start()
    for _ in range(100):
        now[0] += PlainDisplay.seconds / 40
        plain.tick()
    assert len(stream.getvalue().splitlines()) == 2
    plain.close()
    plain.close()
    assert len(stream.getvalue().splitlines()) == 3


def test_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(Dataset.range(5).iterate(progress=True))) == 5
    assert capsys.readouterr().err.startswith("streamrec: 5 elements (5 records read)")
    for _ in Dataset.range(5).iterate(progress=True):
        break
    assert capsys.readouterr().err.startswith("streamrec: 1 elements")


async def test_async_iterators_show_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert len([number async for number in Dataset.range(5).aiterate(progress=True)]) == 5
    assert capsys.readouterr().err.startswith("streamrec: 5 elements")


def in_terminal(code: str, interrupt_at: bytes = b"") -> tuple[int, bytes]:
    """Runs a program in a terminal, interrupts it when it has written something; its exit code and
    its output.
    """
    ours, theirs = pty.openpty()
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                got = os.read(ours, 1 << 16)
            except OSError:  # what Linux says when the other end is closed
                break
            if not got:
                break
            output += got
            if interrupt_at and interrupt_at in output:
                process.send_signal(signal.SIGINT)
                interrupt_at = b""
        os.close(ours)
        return process.wait(), output


SHOWN_TEXT = b"bottleneck:"
HIDDEN_CURSOR = b"\x1b[?25l"
SHOWN_CURSOR = b"\x1b[?25h"
PROGRAM_THAT_LEAVES = (
    "import threading; [thread.join(5) for thread in threading.enumerate() if 'Refresh' in "
    "type(thread).__name__]; "
    "print([thread.name for thread in threading.enumerate()])"
)
"""Says which threads are left; rich's own has been told to end, and is not waited for by it."""


def test_a_terminal_shows_it_until_the_end() -> None:
    code, output = in_terminal(
        "from streamrec import Dataset\n"
        "for number in Dataset.range(3).iterate(progress=True): print('number', number)\n"
        f"{PROGRAM_THAT_LEAVES}"
    )
    assert code == 0
    assert b"3 elements (3 records read)" in output
    assert output.index(HIDDEN_CURSOR) < min(output.index(b"number 0"), output.index(SHOWN_TEXT))
    assert (
        output.rindex(SHOWN_TEXT)
        < output.rindex(SHOWN_CURSOR)
        < output.index(b"['MainThread', 'streamrec-loop']")
    )


@pytest.mark.parametrize("leave", ["break", "raise LookupError('left')"])
def test_a_terminal_is_given_back_when_the_loop_is_left(leave: str) -> None:
    code, output = in_terminal(
        "from streamrec import Dataset\n"
        "try:\n"
        f"    for number in Dataset.range(3).repeat().iterate(progress=True): {leave}\n"
        "except LookupError: pass\n"
        f"{PROGRAM_THAT_LEAVES}"
    )
    assert code == 0
    assert output.rindex(SHOWN_CURSOR) < output.index(b"['MainThread', 'streamrec-loop']")


def test_a_terminal_is_given_back_at_an_interrupt() -> None:
    code, output = in_terminal(
        "import threading\n"
        "from streamrec import Dataset\n"
        "def waits(number): threading.Event().wait(0 if number < 3 else 4)\n"
        "def run():\n"
        "    for number in Dataset.range(9).batch(1).map(waits).iterate(progress=True): pass\n"
        "try: run()\n"
        f"except KeyboardInterrupt: {PROGRAM_THAT_LEAVES}\n"
        "import os; os._exit(5)\n",
        interrupt_at=SHOWN_TEXT,
    )
    assert code == 5
    assert output.count(SHOWN_CURSOR) == 1


def test_a_package_that_is_missing_is_named() -> None:
    code, output = in_terminal(
        "import sys; sys.modules['rich'] = None\n"
        "import streamrec\n"
        "try: streamrec.Dataset.range(3).iterate(progress=True)\n"
        "except streamrec.errors.MissingExtraError as error: print(error)"
    )
    assert code == 0
    assert (
        output.strip()
        == f"progress=True in a terminal needs rich: {install_command('cli')}".encode()
    )


Event = dict[str, Any]

FIELDS = {
    "M": {"name", "ph", "pid", "args"},
    "X": {"name", "ph", "pid", "tid", "ts", "dur"},
    "C": {"name", "ph", "pid", "tid", "ts", "args"},
}
"""What the format asks of each kind of event that is written."""


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset[Any]:
    records = TFRecordDataset(
        write_shards(tmp_path, [[bytes(84)] * 30_000] * 3), num_parallel_reads=3
    )
    return (
        Dataset.zip(
            records.batch(500).map(len).prefetch(buffer_bytes=1 << 16), Dataset.range(10**6)
        )
        .repeat(2)
        .batch(2)
    )


def checked(path: Path) -> list[Event]:
    """The events of a trace, each of them as the format wants it, slices of a track one after the
    other.
    """
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
            assert (
                before["ts"] + before["dur"] <= after["ts"] + 0.01
            )  # microseconds, rounded to a thousandth
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert tracks.keys() <= named
    return events


def test_a_trace_replaces_a_trace_and_nothing_else(dataset: Dataset[Any], tmp_path: Path) -> None:
    data = (tmp_path / "s-0").read_bytes()
    for _ in range(2):
        for _ in dataset.iterate(trace=tmp_path / "run.json"):
            break
        checked(tmp_path / "run.json")
        with pytest.raises(
            FileExistsError, match="s-0 already exists and is not a trace: use another name"
        ):
            next(dataset.iterate(trace=tmp_path / "s-0"))
    assert (tmp_path / "s-0").read_bytes() == data


def test_a_run_is_written_as_it_went(dataset: Dataset[Any], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with dataset.iterate(trace=path) as batches:
        count = len(list(batches))
        stats = batches.stats()
    events = checked(path)
    names = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    assert sorted(names.values()) == sorted(
        ["the consumer", *(stage.title for stage in stats.stages)]
    )
    (mapped,) = (number for number, name in names.items() if name == "map: your function len")
    busy = [
        event
        for event in events
        if event["ph"] == "X" and event["tid"] == mapped and event["name"] == "busy"
    ]
    (row,) = (stage for stage in stats.stages if stage.title == "map: your function len")
    assert sum(event["dur"] for event in busy) / 1e6 == pytest.approx(row.busy, abs=1e-4)
    assert (
        sum(event.get("args", {}).get("elements", 0) for event in busy) == row.elements_out == 360
    )
    (consumer,) = (number for number, name in names.items() if name == "the consumer")
    taken = [
        event
        for event in events
        if event["ph"] == "X" and event["tid"] == consumer and "args" in event
    ]
    assert sum(event["args"]["elements"] for event in taken) == count == 180


def test_counters_are_written(tmp_path: Path) -> None:
    """Of queues that live: with little memory, the one of prefetch does until the last elements are
    taken.
    """
    path = tmp_path / "run.json"
    consumed = 0
    numbers_ahead = (
        Dataset.range(1_000_000).prefetch(buffer_bytes=1 << 20).with_options(memory_budget=4 << 20)
    )
    with numbers_ahead.iterate(trace=path) as numbers:
        for _ in numbers:
            consumed += 1
    counters = {event["name"] for event in checked(path) if event["ph"] == "C"}
    assert counters >= {"MB/s", "queue of the consumer, MB", "queue of prefetch, MB"}


def fail_always(number: object) -> None:
    raise LookupError(number)


async def test_a_run_that_fails_is_whole_too(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(LookupError):
        async with Dataset.range(3).map(fail_always).aiterate(trace=path) as elements:
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
