"""A function in a process of its own.

    figures = in_own_process(read, side="streamrec", urls=urls)

imports the module of `read` in a new interpreter, calls `read(side=..., urls=...)` there, and
returns what it returned. Arguments and result travel as JSON. The module runs under its own name,
so it needs no code for its children.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

ANSWER = "the answer of the benchmark's process: "
"""The beginning of the line with the result; libraries print other lines."""

ROOT = Path(__file__).parent.parent.parent
STARTED = "BENCHMARK_STARTED"
ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # gcsfs would ask a service of Google about each bucket of a local server
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    # An installed package has its bytecode; without it, half of a first batch is compiling.
    "PYTHONDONTWRITEBYTECODE": "",
}


class ProcessError(Exception):
    """A process of a benchmark ended without an answer; what it wrote is the message."""


def in_own_process(
    function: Callable[..., Any] | str,
    *,
    python: str = sys.executable,
    package: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    **task: Any,
) -> Any:
    """Calls `function(**task)` in a new process.

    Args:
        function: A function of a module, or its name ("benchmarks.tls:read"), where this process
            cannot import the module.
        python: The interpreter.
        package: The directory that the new process imports streamrec from.
        environment: Variables besides those of this process and `ENVIRONMENT`.
        task: The arguments. Only what JSON can hold arrives unchanged: a tuple becomes a list.

    Raises:
        ProcessError: The function failed, or the process ended before it returned.
    """
    name = function if isinstance(function, str) else name_of(function)
    paths = [str(package), str(ROOT), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    variables |= {**(environment or {}), STARTED: repr(time.time())}
    done = subprocess.run(
        # without -P, the current directory would come before `package`
        [python, "-P", "-m", "benchmarks.harness.process", name],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        env=variables,
    )
    for line in reversed(done.stdout.splitlines()):
        # The exit status says nothing after an answer: obstore's threads can abort the exit.
        if line.startswith(ANSWER):
            return json.loads(line.removeprefix(ANSWER))
    raise ProcessError(f"{name} ended with status {done.returncode}:\n{done.stderr}")


def sides_of(
    function: Callable[..., Any], names: Iterable[str], **task: Any
) -> dict[str, Callable[[], Any]]:
    """A side for each name: `function(side=name, **task)` in a process of its own."""
    return {name: partial(in_own_process, function, side=name, **task) for name in names}


def name_of(function: Callable[..., Any]) -> str:
    """The module and the name of a function, also where its module runs as a program.

    >>> name_of(name_of)
    'benchmarks.harness.process:name_of'
    """
    module = function.__module__
    if module == "__main__":
        module = sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
    return f"{module}:{function.__qualname__}"


def seconds_since_start() -> float:
    """Seconds since the parent started this process: imports are a part of them."""
    return time.time() - float(os.environ[STARTED])


def main() -> None:
    """The new process: calls the function, and answers."""
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    answer = json.dumps(function(**json.load(sys.stdin)))
    print(f"\n{ANSWER}{answer}", flush=True)


if __name__ == "__main__":
    main()
