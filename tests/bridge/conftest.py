"""Runs scripts in new interpreters, with warnings as errors, for the bridge's contract.

A script prints its progress to stdout; the test reads the lines and sends signals between them,
without a sleep. A script that hangs is aborted, and its stderr shows where it was.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.effort import thorough

SCRIPTS = Path(__file__).with_name("scripts")
ROOT = Path(__file__).parents[2]
MODES = {
    "plain": ["-X", "faulthandler", "-W", "error"],
    "dev": ["-X", "dev", "-W", "error"],
}  # dev: asyncio's debug mode as well
LIMIT = 100.0  # seconds that any row may take, on a busy machine


class Child:
    """A running script."""

    def __init__(self, flags: list[str], script: str, *args: str) -> None:
        self._moment = 0.0
        # A file, not a pipe, which would have to be read at the same time; release() closes it.
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, *flags, str(SCRIPTS / script), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )
        self._watchdog = threading.Timer(LIMIT, self._process.send_signal, [signal.SIGABRT])
        self._watchdog.start()

    def expect(self, *lines: str) -> None:
        """Read these lines next from the script's stdout."""
        assert self._process.stdout is not None
        for line in lines:
            found = self._process.stdout.readline().rstrip("\n")
            if found != line:
                self.kill()
                pytest.fail(f"expected {line!r}, found {found!r}; stderr: {self.errors()}")
        self._moment = time.monotonic()

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def finish(self, *lines: str, code: int = 0, errors: str = "") -> float:
        """Wait for the script's end; return the seconds since the last line of `expect`.

        Args:
            lines: The remaining lines of stdout.
            code: The expected exit code.
            errors: A text that stderr must contain; empty: stderr must be empty.
        """
        assert self._process.stdout is not None
        stdout = (
            self._process.stdout.read()
        )  # with what `expect` has buffered; communicate() would lose that
        stderr = self.errors()
        took = time.monotonic() - self._moment
        assert (stdout.splitlines(), self._process.returncode) == (list(lines), code), stderr
        assert stderr == "" if not errors else errors in stderr, stderr
        return took

    def errors(self) -> str:
        """All of stderr, once the script has ended."""
        self._process.wait()
        self._stderr.seek(0)
        return self._stderr.read()

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()

    def release(self) -> None:
        """End it and close its pipes."""
        self._watchdog.cancel()
        if self._process.poll() is None:
            self.kill()
        self._process.communicate()
        self._stderr.close()


Start = Callable[..., Child]


@pytest.fixture(params=["plain", *thorough("dev")])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start `scripts/<script> <args>` in a fresh interpreter; it is gone when the test ends."""
    children: list[Child] = []

    def begin(script: str, *args: str) -> Child:
        children.append(Child(MODES[request.param], script, *args))
        return children[-1]

    yield begin
    for child in children:
        child.release()
