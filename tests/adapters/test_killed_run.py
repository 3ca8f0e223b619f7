"""Training runs in JAX and Grain that are killed at random steps, and go on with exactly the records that follow."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamrec import TFRecordWriter, encode_example
from streamrec.testing.servers import Store
from tests.adapters.killed_run import EPOCHS, dataset_of

ROOT = Path(__file__).parents[2]
RECORDS, SHARDS, KILLS = 400, 4, 3
STEPS = EPOCHS * RECORDS // 8

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]


@pytest.mark.parametrize("adapter", ["jax", "grain"])
def test_a_killed_run_goes_on_where_it_was(s3_store: Store, tmp_path: Path, adapter: str) -> None:
    if importlib.util.find_spec(adapter) is None:
        pytest.skip(f"not installed: {adapter}")
    for shard in range(SHARDS):
        url = f"{s3_store.url}/killed-{adapter}/s-{shard}"
        with TFRecordWriter(url, storage_options=s3_store.options) as writer:
            for number in range(shard, RECORDS, SHARDS):
                writer.write(encode_example({"id": number}))
    urls = f"{s3_store.url}/killed-{adapter}/s-*"
    expected = [batch["id"].tolist() for batch in dataset_of(urls, dict(s3_store.options))]
    assert len(expected) == STEPS
    command = [sys.executable, "-m", "tests.adapters.killed_run", adapter, urls]
    command += [json.dumps(dict(s3_store.options)), str(tmp_path / "state")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    chance = random.Random(7)
    for kill in range(KILLS + 1):
        steps = chance.randrange(1, STEPS // KILLS) if kill < KILLS else STEPS
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT) as run:
            assert run.stdout is not None
            for _ in zip(range(steps), run.stdout, strict=False):
                pass
            if kill < KILLS:
                run.kill()
        assert run.returncode == (-signal.SIGKILL if kill < KILLS else 0)
        learned = json.loads((tmp_path / "state").read_text())["seen"]
        assert learned == expected[: len(learned)]
    assert learned == expected
