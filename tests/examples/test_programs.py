"""The programs of examples as a person runs them: the demo, also interrupted or broken; the
tutorial; a training run.

A demo runs in a process of its own with a temporary directory of its own. Its output is read to the
end, which comes when the last process that holds it is gone: the demo and the process that writes
for it.
"""

import asyncio
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from examples import tfrecord_tutorial as tutorial
from examples.demo.job import planned
from examples.demo.records import Tally
from examples.demo.report import LostRecordsError, check_all_came_back
from tests.servers.real import Store

ROOT = Path(__file__).parents[2]
GONE_SECONDS = 20  # far more than it takes, and far less than a server that stays


@contextmanager
def running_demo(
    temporary: Path, *arguments: str, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "examples.demo", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    """The output as far as the first line with this in it."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if re.search(pattern, line):
            return said
    raise AssertionError(f"no line had {pattern!r}:\n{said}")


def assert_nothing_is_left(temporary: Path, said: str) -> None:
    """The server does not answer any more, and no file of it is there."""
    port = re.search(r"http://127\.0\.0\.1:(\d+)", said)
    assert port is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port[1])), timeout=5)
    assert list(temporary.iterdir()) == []


def server_of(temporary: Path) -> int:
    """The SeaweedFS that runs below the watchdog of this directory."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            words = process.joinpath("cmdline").read_bytes()
            if b"watchdog.py" in words and bytes(temporary) in words:
                return int(process.joinpath("task", process.name, "children").read_text())
    raise AssertionError("no server runs")


def test_a_small_demo_ends_with_its_table(tmp_path: Path) -> None:
    with running_demo(tmp_path, "--megabytes", "12", "--shards", "4", "--epochs", "3") as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    table = dict(re.findall(r"^│ (\S.*?) +│ (.+?) +│$", said, re.MULTILINE))
    job = planned("s3://demo/images", {}, 12_000_000, 4)
    records, tested = 3 * 4 * job.shard_records, 2 * job.held_out_records
    assert table["records"] == f"{records:,} in 3 epochs of 4 shards, all as written"
    assert table["CRCs checked"] == f"{2 * (records + tested):,}"
    assert table["accuracy"].endswith(f" of {tested:,} held-out images")
    assert float(table["accuracy"].split("%")[0]) > 30  # by chance it would be 10
    assert float(table["MB/s"].split()[0].replace(",", "")) > 0
    assert float(table["CPU-s per GB"].split()[0]) > 0
    assert 0 <= int(table["waited for data"].split("%")[0]) <= 100
    assert int(table["peak memory"].split(" MB")[0].replace(",", "")) > 50
    assert_nothing_is_left(tmp_path, said)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param("^SeaweedFS", signal.SIGINT, marks=pytest.mark.thorough),
        ("^writing", signal.SIGINT),
        pytest.param(r"^ +\d+ %$", signal.SIGINT, marks=pytest.mark.thorough),
        pytest.param(r"\d+ % accuracy", signal.SIGTERM, marks=pytest.mark.thorough),
    ],
)
def test_an_interrupt_leaves_nothing(tmp_path: Path, moment: str, number: signal.Signals) -> None:
    with running_demo(tmp_path, "--megabytes", "12", "--shards", "4", "--epochs", "40") as process:
        said = read_until(process, moment)
        interrupted = time.monotonic()
        process.send_signal(number)
        rest, _ = process.communicate()
        took = time.monotonic() - interrupted
    assert process.returncode == 128 + signal.SIGINT, said + rest
    assert "stopped" in rest
    assert "Traceback" not in rest
    assert took < GONE_SECONDS
    assert_nothing_is_left(tmp_path, said)


def test_without_servers_it_says_what_to_type(tmp_path: Path) -> None:
    with running_demo(tmp_path, STREAMREC_SERVERS=str(tmp_path / "nowhere")) as process:
        said, _ = process.communicate()
    assert process.returncode == 1
    assert "make servers" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_without_room_it_says_how_much_is_wanted(tmp_path: Path) -> None:
    with running_demo(tmp_path, "--megabytes", "100000000") as process:
        said, _ = process.communicate()
    assert process.returncode == 1
    assert re.search(r"GB free where .* GB are needed; .*--megabytes", said)


@pytest.mark.thorough
@pytest.mark.parametrize("moment", [r"^ +\d+ %$", r"\d+ % accuracy"])
def test_a_server_that_dies_is_one_line(tmp_path: Path, moment: str) -> None:
    with running_demo(tmp_path, "--megabytes", "12", "--shards", "4", "--epochs", "400") as process:
        said = read_until(process, moment)
        os.kill(server_of(tmp_path), signal.SIGKILL)
        rest, _ = process.communicate()
    assert process.returncode == 1, said + rest
    last = rest.splitlines()[-1]
    assert last.startswith("the demo failed: ")
    assert "s3://demo/images" in last
    assert "Traceback" not in rest
    assert list(tmp_path.iterdir()) == []


def test_tallies_heed_every_record_and_no_order() -> None:
    forward = Tally()
    backward = Tally()
    other = Tally()
    forward.add([b"one", b"two"])
    backward.add([b"two", b"one"])
    other.add([b"one", b"too"])
    assert forward == backward
    assert forward.times(2) == Tally(4, 2 * (6 + 2 * 16), 2 * forward.checksum)
    check_all_came_back("here", forward, backward)
    with pytest.raises(
        LostRecordsError, match="here: all 2 records were read, but not as they were written"
    ):
        check_all_came_back("here", forward, other)
    with pytest.raises(LostRecordsError, match="here: 2 records were read where 4 were written"):
        check_all_came_back("here", forward.times(2), forward)


def test_each_program_runs_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tutorial.main(tmp_path)
    printed = capsys.readouterr().out
    assert 'value: "test_string"' in printed
    assert "'feature2': FixedLenFeature([], 'string')" in printed
    assert "label 1: (427, 640, 3)" in printed


def test_observations_come_back(tmp_path: Path) -> None:
    written = tutorial.observations()
    tutorial.write_observations(tmp_path / "test.tfrecord", written)
    read = tutorial.read_observations(tmp_path / "test.tfrecord")
    assert len(read["feature0"]) == 10_000
    np.testing.assert_array_equal(
        read["feature0"], written["feature0"].astype(np.int64), strict=True
    )
    np.testing.assert_array_equal(read["feature1"], written["feature1"], strict=True)
    np.testing.assert_array_equal(read["feature2"], written["feature2"], strict=True)
    np.testing.assert_array_equal(
        read["feature3"], written["feature3"].astype(np.float32), strict=True
    )
    first = tutorial.read_one_by_hand(tmp_path / "test.tfrecord")
    assert first["feature2"] == [written["feature2"][0]]


def test_photos_come_back(tmp_path: Path) -> None:
    images = tutorial.photos()
    tutorial.write_photos(tmp_path / "images.tfrecords", images)
    assert all(jpeg in (tmp_path / "images.tfrecords").read_bytes() for jpeg in images.values())
    for array, jpeg in zip(
        tutorial.read_photos(tmp_path / "images.tfrecords"), images.values(), strict=True
    ):
        with Image.open(io.BytesIO(jpeg)) as image:
            np.testing.assert_array_equal(array, np.asarray(image))


KILLED_AT = 13
EPOCHS = 3


def run_training(command: list[str], until: int | None = None) -> list[dict[str, Any]]:
    """What it printed, to its end or until it was killed."""
    lines: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(json.loads(line))
            if until is not None and lines[-1]["step"] == until:
                process.kill()
                break
    assert until is not None or process.returncode == 0
    return lines


@pytest.mark.peer
@pytest.mark.timeout(600)
def test_a_killed_run_continues_exactly(s3_store: Store, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from examples.train_images.records import write

    assert asyncio.run(write(f"{s3_store.url}/images/{{shard:03d}}", s3_store.options, 800)) == 3
    command = [sys.executable, "-m", "examples.train_images.train", f"{s3_store.url}/images/*"]
    command += [
        "--storage-options",
        json.dumps(dict(s3_store.options)),
        "--epochs",
        str(EPOCHS),
        "--checkpoint",
    ]
    *whole, result = run_training([*command, str(tmp_path / "whole.pt")])
    before = run_training([*command, str(tmp_path / "killed.pt")], until=KILLED_AT)
    *after, same_result = run_training([*command, str(tmp_path / "killed.pt")])
    assert after[0]["step"] in (5, 10)  # from the last checkpoint
    assert before[: after[0]["step"]] + after == whole
    assert result == same_result
    assert result["steps"] == EPOCHS * (800 // 32)
    assert result["accuracy"] > 0.3  # by chance it would be 0.1
    epochs = [whole[first : first + 25] for first in range(0, 75, 25)]
    assert all(len({number for step in epoch for number in step["ids"]}) == 800 for epoch in epochs)
    assert epochs[0][0]["ids"] != epochs[1][0]["ids"]
