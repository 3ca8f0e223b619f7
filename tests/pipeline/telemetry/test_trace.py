"""A trace file on a disk that is or becomes full: an error before the run, or a warning in it."""

import json
import os
from pathlib import Path

import pytest

from streamrec import Dataset
from tests.runs import in_new_interpreter

FULL = """
import resource, signal, sys
from streamrec import Dataset
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
with Dataset.range(20_000).map(int).batch(1).iterate(trace=sys.argv[1]) as run:
    print(sum(1 for _ in run))
"""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's full device")
def test_trace_that_cannot_begin_is_an_error_before_the_run() -> None:
    with pytest.raises(OSError, match=r"the trace cannot be written \(No space left on device\)"):
        Dataset.range(3).iterate(trace="/dev/full")


def test_run_ends_well_where_its_trace_cannot(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert in_new_interpreter(FULL, path).split()[-1] == "20000"
    assert 0 < path.stat().st_size <= 3000
    assert path.read_bytes().startswith(b'[{"name": "process_name"')


def test_warning_says_that_the_trace_is_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    code = "import logging\nlogging.basicConfig(stream=__import__('sys').stdout)\n" + FULL
    said = in_new_interpreter(code, path)
    assert said.count("trace.json: this trace is incomplete") == 1
    assert "File too large" in said


def test_whole_trace_is_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with Dataset.range(30).iterate(trace=path) as run:
        assert sum(1 for _ in run) == 30
    assert len(json.loads(path.read_text())) > 1
