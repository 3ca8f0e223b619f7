"""The installed command, as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

import streamrec
from streamrec.cli import program
from tests.runs import in_new_interpreter
from tests.servers.faults import Faults
from tests.servers.objectstore import ObjectStore
from tests.servers.real import Store

COMMAND = str(Path(sys.executable).with_name("streamrec"))
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63f8cfc0f01f0005000"
    "1ff56c72f0d0000000049454e44ae426082"
)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run_command(*arguments: str | Path, **more: Any) -> Outcome:
    """Runs the command to its end; it must not end in a traceback."""
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, timeout=60, **more)
    found = Outcome(
        done.returncode, done.stdout.decode("utf-8", "surrogateescape"), done.stderr.decode()
    )
    assert "Traceback" not in found.err, found.err
    return found


PEAK_MEMORY_PROGRAM = """
import sys
from streamrec.cli import program
code = program.run(sys.argv[1:])
print(code, *[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")])
"""


def peak_bytes(*arguments: str | Path) -> int:
    """The most memory that a command holds on Linux, in bytes."""
    code, kilobytes = in_new_interpreter(PEAK_MEMORY_PROGRAM, *arguments).split()[-2:]
    assert code == "0"
    return int(kilobytes) << 10


@dataclass(frozen=True)
class CommandLine:
    """Runs a command in this process, which has imported the clients already: a tenth of the
    time.
    """

    capfd: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> Outcome:
        code = program.run(list(map(str, arguments)))
        return Outcome(code, *self.capfd.readouterr())

    def succeeds(self, *arguments: str | Path) -> Outcome:
        """The command succeeds."""
        done = self(*arguments)
        assert done.code == 0, done
        return done

    def fails(self, code: int, said: str, *arguments: str | Path) -> Outcome:
        """The command ends with this code, and has this text in its message."""
        done = self(*arguments)
        assert (done.code, said in done.err) == (code, True), done
        return done


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


def start_command(*arguments: str | Path) -> subprocess.Popen[str]:
    """Starts the command."""
    return subprocess.Popen(
        [COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def still_running(process: subprocess.Popen[str]) -> None:
    """Gives a command some more time, in which it does not end."""
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)


def interrupt(process: subprocess.Popen[str]) -> str:
    """Ctrl-C: the command ends as interrupted ones do. What it said last on standard error."""
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert said.endswith("\nstreamrec: interrupted\n")
    assert "Traceback" not in said
    return said


def interrupt_after_first_shard(*arguments: str | Path) -> None:
    """Ctrl-C comes after the command's first shard is written."""
    with start_command("-v", *arguments) as process:
        assert process.stderr is not None
        while "is written" not in process.stderr.readline():
            pass
        interrupt(process)


def interrupt_stalled(command: str, *arguments: str | Path, root: Path) -> None:
    """Ctrl-C comes while a command waits for a store that has stopped in the middle of an answer:
    it hangs up.
    """
    with ObjectStore(root, Faults(first_byte=0, jitter=0, stall=1, at=0.5)) as store:
        options = typed_options({"anon": True, "endpoint_url": store.url})
        with start_command(command, *options, *arguments) as process:
            deadline = time.monotonic() + 60
            while not any(entry.fault == "stall" for entry in store.log):
                still_running(process)
                assert time.monotonic() < deadline
            interrupt(process)
        assert store.wait_closed()


def example_rows(count: int) -> list[dict[str, Any]]:
    """A number, a score that every third row lacks, words and an image."""
    return [
        {"label": number % 4, "words": ["a"] * (number % 3), "image": PNG}
        | ({"score": number / 8} if number % 3 else {})
        for number in range(count)
    ]


def example_records(count: int) -> list[bytes]:
    """`example_rows` as records."""
    return list(map(streamrec.encode_example, example_rows(count)))


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """A shard of 240 examples."""
    path = tmp_path / "data" / "train-0.tfrecord"
    path.parent.mkdir()
    path.write_bytes(streamrec.encode_records(example_records(240)))
    return path


@pytest.fixture
def damaged(shard: Path) -> Path:
    """Another shard beside it, of which the payload of record 100 is damaged, and the end is cut
    off.
    """
    data = bytearray(shard.read_bytes())
    data[offset_of_record(shard, 100) + 20] ^= 1
    path = shard.with_name("train-1.tfrecord")
    path.write_bytes(data[:-5])
    return path


def offset_of_record(shard: Path, record: int) -> int:
    frames = streamrec.Framer().feed(shard.read_bytes())
    return int(np.asarray(frames.spans)[record, 0]) - 12


@dataclass(frozen=True)
class Bucket:
    """A prefix in SeaweedFS, with a slash at its end, and what a command is given to reach it."""

    url: str
    options: tuple[str, ...]


@pytest.fixture
def bucket(s3_store: Store) -> Bucket:
    return Bucket(f"{s3_store.url}/{uuid4()}/", typed_options(s3_store.options))


def typed_options(options: Mapping[str, Any]) -> tuple[str, ...]:
    values = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in options.items()
    ]
    return tuple(part for value in values for part in ("-o", value))
