"""Writes records to a store, kills a training run midway, and resumes it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from examples.train_images.records import write
from tests.servers.real import seaweedfs

RECORDS, KILLED_AT = 1800, 40


def main() -> None:
    """Writes, trains, kills, resumes."""
    with seaweedfs() as store, tempfile.TemporaryDirectory() as folder:
        shards = asyncio.run(write(f"{store.url}/digits-{{shard:03d}}", store.options, RECORDS))
        print(f"{RECORDS} JPEGs in {shards} shards at {store.url}")
        command = [sys.executable, "-m", "examples.train_images.train", f"{store.url}/digits-*"]
        command += [
            "--checkpoint",
            str(Path(folder) / "run.pt"),
            "--storage-options",
            json.dumps(dict(store.options)),
        ]
        print(f"killed at step {steps(command, KILLED_AT)['step']}")
        print(f"resumed: {steps(command)}")


def steps(command: list[str], until: int | None = None) -> dict[str, Any]:
    """Runs the training to its end, or kills it at a step; returns the last line that it
    printed.
    """
    told: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            if until is not None and told["step"] == until:
                process.kill()
                return told
    if process.returncode:
        raise SystemExit(f"the training ended with status {process.returncode}")
    return told


if __name__ == "__main__":
    main()
