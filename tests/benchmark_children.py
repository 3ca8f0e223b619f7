"""What `tests/test_benchmark_harness.py` runs in processes of their own."""

from __future__ import annotations

import os
import sys
from typing import Any

from benchmarks.harness.process import seconds_since_start


def told(side: str, **task: Any) -> dict[str, Any]:
    """What arrived; a library prints lines of its own before the answer."""
    print("a line that a library prints")
    return {"side": side, "executable": sys.executable, **task}


def variables() -> dict[str, str]:
    """The environment."""
    return dict(os.environ)


def failing() -> None:
    """Raises an error."""
    raise ValueError("no shard has this name")


def ending() -> None:
    """Ends the process before there is an answer."""
    os._exit(3)


def since_start() -> float:
    """How long the process has been running."""
    return seconds_since_start()
