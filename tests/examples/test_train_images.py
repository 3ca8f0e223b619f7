"""examples/train_images: killed in the middle, it goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers.real import Store

pytest.importorskip("torch")

from examples.train_images.records import write

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

KILLED_AT = 13
EPOCHS = 3


def run(command: list[str], until: int | None = None) -> list[dict[str, Any]]:
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


def test_a_killed_run_goes_on_exactly(s3_store: Store, tmp_path: Path) -> None:
    assert asyncio.run(write(f"{s3_store.url}/images/{{shard:03d}}", s3_store.options, 800)) == 3
    command = [sys.executable, "-m", "examples.train_images.train", f"{s3_store.url}/images/*"]
    command += ["--storage-options", json.dumps(dict(s3_store.options)), "--epochs", str(EPOCHS), "--checkpoint"]
    *whole, result = run([*command, str(tmp_path / "whole.pt")])
    before = run([*command, str(tmp_path / "killed.pt")], until=KILLED_AT)
    *after, same_result = run([*command, str(tmp_path / "killed.pt")])
    assert after[0]["step"] in (5, 10)  # from the last checkpoint
    assert before[: after[0]["step"]] + after == whole
    assert result == same_result
    assert result["steps"] == EPOCHS * (800 // 32)
    assert result["accuracy"] > 0.3  # by chance it would be 0.1
    epochs = [whole[first : first + 25] for first in range(0, 75, 25)]
    assert all(len({number for step in epoch for number in step["ids"]}) == 800 for epoch in epochs)
    assert epochs[0][0]["ids"] != epochs[1][0]["ids"]
