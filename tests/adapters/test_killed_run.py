"""Training runs with Accelerate that are killed at random steps resume with exactly the next
records.
"""

import os
import random
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from streamrec import write_manifest_sync
from tests.adapters.conftest import ROOT, client_environment, free_port, store_examples
from tests.effort import THOROUGH, thorough
from tests.pages import blocks
from tests.servers.real import Store

RECORDS = 400
SHARDS = 4
KILLS = 3 if THOROUGH else 2
EPOCHS = 2

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
@pytest.mark.parametrize("ranks", [2, *thorough(1)])
def test_a_killed_run_of_accelerate_continues_where_it_was(
    s3_store: Store, tmp_path: Path, ranks: int
) -> None:
    """The program of docs/pytorch.md: each rank has the records and losses of a run that was not
    killed.
    """
    rows = (
        {"x": [number / RECORDS, 1.0], "label": number % 2, "id": number}
        for number in range(RECORDS)
    )
    urls = store_examples(s3_store, f"killed-accelerate-{ranks}", SHARDS, rows)
    folder = urls.removesuffix("train-*")
    write_manifest_sync(urls, f"{folder}manifest.json", storage_options=s3_store.options)
    [block] = [
        block for block in blocks(ROOT / "docs/pytorch.md") if block.title == "train_accelerate.py"
    ]
    (tmp_path / "train.py").write_text(block.text.replace('"data/', f'"{folder}'))
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    environment = {**os.environ, **client_environment(s3_store), "OMP_NUM_THREADS": "1"}
    expected = accelerated(tmp_path / "whole", ranks, environment)
    steps = len(expected) // ranks
    assert steps == EPOCHS * RECORDS // 8 // ranks
    chance, runs = random.Random(7), []
    for _ in range(KILLS):
        runs.append(
            accelerated(
                tmp_path / "killed", ranks, environment, chance.randrange(1, steps // KILLS)
            )
        )
    runs.append(accelerated(tmp_path / "killed", ranks, environment))
    assert len(runs[-1]) < len(expected)
    assert sorted(set().union(*runs)) == sorted(expected)


def accelerated(
    folder: Path, ranks: int, environment: dict[str, str], steps: int | None = None
) -> list[str]:
    """The output of all ranks, to the end; with `steps`, all are killed when rank 0 has printed
    that many lines.
    """
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    world["ACCELERATE_USE_CPU"] = "true"
    started = [
        subprocess.Popen(
            [sys.executable, "../train.py"],
            env={**environment, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        for rank in range(ranks)
    ]
    output = started[0].stdout
    assert output is not None
    lines = [line.rstrip() for _, line in zip(range(steps or sys.maxsize), output, strict=False)]
    if steps is not None:
        for run in started:
            run.kill()
    lines += [line for run in started for line in run.communicate()[0].splitlines()]
    assert {run.returncode for run in started} == {0 if steps is None else -signal.SIGKILL}
    return lines
