"""Runs the service in its own process, for the demo, the tests and the load test."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from examples.service.app import Settings

__all__ = ["Running", "running", "serving"]


@dataclass(frozen=True)
class Running:
    """A running service.

    Attributes:
        url: The address: "http://127.0.0.1:PORT".
        process: The process.
        log: The log file.
    """

    url: str
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def serving(settings: Settings, log: Path, port: int = 0) -> Iterator[Running]:
    """Runs the service until the block ends.

    Args:
        settings: The settings of the service.
        log: A file for its log.
        port: A port of this machine; 0 for any free one.
    """
    environment = {
        "STREAMREC_SERVICE_URL": settings.url,
        "STREAMREC_SERVICE_OPTIONS": json.dumps(dict(settings.storage_options)),
        "STREAMREC_SERVICE_PATIENCE": str(settings.patience),
    }
    command = ["--factory", "examples.service.app:create", "--timeout-graceful-shutdown", "5"]
    with running(command, environment, log, port) as service:
        yield service


@contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str], log: Path, port: int = 0
) -> Iterator[Running]:
    """Runs uvicorn with a command and more variables until the block ends.

    The socket listens before the process has started, so that a client can connect at once.
    """
    with (
        socket.create_server(("127.0.0.1", port), backlog=512) as listening,
        log.open("wb") as output,
    ):
        words = [
            sys.executable,
            "-m",
            "uvicorn",
            "--no-access-log",
            "--fd",
            str(listening.fileno()),
            *command,
        ]
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        process = subprocess.Popen(
            words,
            env={**os.environ, **environment},
            stderr=output,
            stdout=output,
            pass_fds=[listening.fileno()],
        )
    with process:  # which alone listens now: if it ends, its clients are refused
        try:
            yield Running(url, process, log)
        finally:
            process.terminate()
