"""Progress: the line that is shown, and the three places where it is: a terminal, a notebook, a plain stream."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamrec import Dataset
from streamrec.pipeline import StageStats, Stats
from streamrec.pipeline.telemetry.progress import PLAIN_SECONDS, Display, PlainDisplay, format_line
from streamrec.pipeline.telemetry.stats import ChainStats
from streamrec.storage import Snapshot

ROOT = Path(__file__).parents[3]


def stats(seconds: float, waited: float) -> Stats:
    """Of a run that reads 10 elements of 1 MB a second."""
    count = int(10 * seconds)
    source = StageStats("range", "Range()", 0, 0, count, count * 10**6, busy=waited)
    return Stats(count, 0, waited, seconds - waited, 0, 10, ChainStats((source,), seconds), Snapshot({}, ()))


class Clock:
    """One that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_line() -> None:
    expected = "streamrec: 40 elements (40 records read), 10.0 MB/s, waited 50%, bottleneck: range"
    assert format_line(stats(4.0, 2.0), None, 0.0) == expected
    assert format_line(stats(0.0, 0.0), None, 0.0).endswith("0.0 MB/s, waited 0%, bottleneck: nothing yet")


def test_speed_and_bottleneck_are_of_the_last_seconds() -> None:
    clock, lines = Clock(), []
    display = Display(lambda: stats(clock.now, min(clock.now, 10.0)), clock)
    for second in range(30):
        clock.now = float(second)
        lines.append(display.line())
    assert "waited 100%, bottleneck: range" in lines[9]
    assert lines[29] == "streamrec: 290 elements (290 records read), 10.0 MB/s, waited 0%, bottleneck: the consumer"


def test_plain_lines_come_now_and_then() -> None:
    clock, stream = Clock(), io.StringIO()
    plain = PlainDisplay(lambda: stats(clock.now, 0.0), stream, clock)
    plain.close()
    assert stream.getvalue() == ""
    plain.start()
    for _ in range(100):
        clock.now += PLAIN_SECONDS / 40
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
    """Runs a program in a terminal, interrupts it when it has written something; its exit code and its output."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                got = os.read(ours, 1 << 16)
            except OSError:  # what Linux says when nobody has the other end open
                break
            if not got:
                break
            output += got
            if interrupt_at and interrupt_at in output:
                process.send_signal(signal.SIGINT)
                interrupt_at = b""
        os.close(ours)
        return process.wait(), output


SHOWN, HIDDEN_CURSOR, CURSOR = b"bottleneck:", b"\x1b[?25l", b"\x1b[?25h"
LEFT = (
    "import threading; [thread.join(5) for thread in threading.enumerate() if 'Refresh' in type(thread).__name__]; "
    "print([thread.name for thread in threading.enumerate()])"
)
"""Says which threads are left; rich's own has been told to end, and is not waited for by it."""


def test_a_terminal_shows_it_until_the_end() -> None:
    code, output = in_terminal(
        "from streamrec import Dataset\n"
        "for number in Dataset.range(3).iterate(progress=True): print('number', number)\n"
        f"{LEFT}"
    )
    assert code == 0
    assert b"3 elements (3 records read)" in output
    assert output.index(HIDDEN_CURSOR) < min(output.index(b"number 0"), output.index(SHOWN))
    assert output.rindex(SHOWN) < output.rindex(CURSOR) < output.index(b"['MainThread', 'streamrec-loop']")


@pytest.mark.parametrize("leave", ["break", "raise LookupError('left')"])
def test_a_terminal_is_given_back_when_the_loop_is_left(leave: str) -> None:
    code, output = in_terminal(
        "from streamrec import Dataset\n"
        "try:\n"
        f"    for number in Dataset.range(3).repeat().iterate(progress=True): {leave}\n"
        "except LookupError: pass\n"
        f"{LEFT}"
    )
    assert code == 0
    assert output.rindex(CURSOR) < output.index(b"['MainThread', 'streamrec-loop']")


def test_a_terminal_is_given_back_at_an_interrupt() -> None:
    code, output = in_terminal(
        "import threading\n"
        "from streamrec import Dataset\n"
        "def waits(number): threading.Event().wait(0 if number < 3 else 4)\n"
        "def run():\n"
        "    for number in Dataset.range(9).batch(1).map(waits).iterate(progress=True): pass\n"
        "try: run()\n"
        f"except KeyboardInterrupt: {LEFT}\n"
        "import os; os._exit(5)\n",
        interrupt_at=SHOWN,
    )
    assert code == 5
    assert output.count(CURSOR) == 1


def test_a_package_that_is_missing_is_named() -> None:
    code, output = in_terminal(
        "import sys; sys.modules['rich'] = None\n"
        "import streamrec\n"
        "try: streamrec.Dataset.range(3).iterate(progress=True)\n"
        "except streamrec.errors.MissingExtraError as error: print(error)"
    )
    assert code == 0
    assert output.strip() == b"progress=True in a terminal needs rich: pip install 'streamrec[cli]'"


@pytest.mark.peer
def test_a_notebook_rewrites_an_output() -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cell = nbformat.v4.new_code_cell(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from streamrec import Dataset\n"
        "sum(1 for number in Dataset.range(50_000).iterate(progress=True))"
    )
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown, result = notebook.cells[0].outputs
    assert shown.output_type == "display_data"
    assert shown.data["text/plain"].startswith("streamrec: 50,000 elements (50,000 records read)")
    assert result.data["text/plain"] == "50000"
