"""The processes of one side, a rank each: they start an epoch together, and are ended together.

What goes wrong is a `RunError` with what the process said last. Nothing is waited for longer than
the limit: a library that hangs is such an error, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.disk_cache.reader import ANSWER
from benchmarks.disk_cache.sides import Place
from benchmarks.harness.process import ENVIRONMENT, ROOT

LOOK_SECONDS = 0.05
"""How often the size of the cache's directory is looked at."""

Answer = dict[str, Any]


class RunError(Exception):
    """A side failed, or did not end in time."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How the processes of a side run.

    Attributes:
        python: The interpreter.
        count: How many processes there are.
        seconds: How long the start, or an epoch, may take.
        environment: More variables.
    """

    python: str
    count: int
    seconds: float
    environment: Mapping[str, str]


class Ranks:
    """The processes of a side.

    Attributes:
        peak: The most bytes that were seen in the directory of the cache.
    """

    def __init__(self, side: str, place: Place, terms: Terms) -> None:
        self.peak = 0
        self._side = side
        self._place = place
        self._terms = terms
        self._processes: list[asyncio.subprocess.Process] = []
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __aexit__

    async def __aenter__(self) -> Ranks:
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        self._said.close()

    async def epoch(self, number: int, stop_after: int | None = None) -> tuple[float, list[Answer]]:
        """Has all ranks read an epoch; returns the seconds, and the answer of each."""
        began = time.monotonic()
        answers = await self._ask({"epoch": number, "stop_after": stop_after})
        return time.monotonic() - began, answers

    async def kill(self) -> None:
        """Ends all processes, and theirs, at once and without a warning, as kill -9 does."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            await process.wait()
        self._processes = []

    async def _start(self) -> None:
        port = free_port()
        for rank in range(self._terms.count):
            self._processes.append(await self._start_rank(rank, port))
        await self._ask({"side": self._side, "place": asdict(self._place)})

    async def _start_rank(self, rank: int, port: int) -> asyncio.subprocess.Process:
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        ranks = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": self._terms.count,
            "LOCAL_WORLD_SIZE": self._terms.count,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        return await asyncio.create_subprocess_exec(
            *(self._terms.python, "-P", "-m", "benchmarks.disk_cache.reader"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._said,
            env={
                **os.environ,
                **ENVIRONMENT,
                **{name: str(value) for name, value in ranks.items()},
                **self._terms.environment,
                "PYTHONPATH": paths,
            },
            start_new_session=True,
        )

    async def _ask(self, question: Answer) -> list[Answer]:
        """Sends all ranks a line, and waits for an answer of each."""
        looking = asyncio.create_task(self._look())
        asked = [asyncio.create_task(ask(process, question)) for process in self._processes]
        try:
            async with asyncio.timeout(self._terms.seconds):
                # the first failure counts: the other ranks may wait for the one that failed
                return list(await asyncio.gather(*asked))
        except TimeoutError:
            error = self._error()
            raise RunError(
                f"did not end within {self._terms.seconds:.0f} s" + (f": {error}" if error else "")
            ) from None
        except EOFError:
            raise RunError(self._error() or "a process ended without an answer") from None
        finally:
            looking.cancel()
            for task in asked:
                task.cancel()
            self.peak = max(self.peak, bytes_in(Path(self._place.cache)))

    async def _look(self) -> None:
        while True:
            self.peak = max(self.peak, bytes_in(Path(self._place.cache)))
            await asyncio.sleep(LOOK_SECONDS)

    def _error(self) -> str:
        """The first error that the processes wrote: the others may follow from it."""
        self._said.seek(0)
        return first_error(self._said.read().decode(errors="replace"))


async def ask(process: asyncio.subprocess.Process, question: Answer) -> Answer:
    """Sends a line, and waits for the answer; EOFError if the process ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):
        process.stdin.write(json.dumps(question).encode() + b"\n")
        await process.stdin.drain()
    while line := await process.stdout.readline():
        text = line.decode(errors="replace")
        if text.startswith(ANSWER):
            answer: Answer = json.loads(text.removeprefix(ANSWER))
            return answer
    raise EOFError


def first_error(text: str) -> str:
    r"""The line of the first error in what processes wrote; "" without one.

    >>> first_error("Traceback:\n  raise ValueError()\n[rank0]: a.b.ValueError: too low\nEnd\n")
    'a.b.ValueError: too low'
    """
    found = re.search(r"^(?:\[rank\d+\]: )*([\w.]+(?:Error|Exception)\b.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def bytes_in(directory: Path) -> int:
    """The bytes of the files below a directory; others add and remove some meanwhile."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
