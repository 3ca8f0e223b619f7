"""streamrec.jax and streamrec.grain, in processes of their own: with JAX in a process, forks warn."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from streamrec import encode_example, encode_records

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
needs_grain = pytest.mark.skipif(importlib.util.find_spec("grain") is None, reason="grain is not installed")

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]  # programs that import JAX and start others


def environment(devices: int) -> dict[str, str]:
    return {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize(
    "cases", [pytest.param("jax_cases", marks=needs_jax), pytest.param("grain_cases", marks=needs_grain)]
)
def test_cases(cases: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    file = Path(__file__).with_name(f"{cases}.py")
    done = subprocess.run([*command, str(file)], env=environment(8), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_jax
def test_processes_read_their_parts_of_global_batches(tmp_path: Path) -> None:
    rows = [encode_example({"id": number}) for number in range(64)]
    for shard in range(2):
        (tmp_path / f"train-{shard}").write_bytes(encode_records(rows[32 * shard : 32 * shard + 32]))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.adapters.jax_ranked"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(port), str(tmp_path / "train-*")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(4),
        )
        for rank in range(2)
    ]
    said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    (own, sums, *places), (others, same_sums, *other_places) = (json.loads(out.splitlines()[-1]) for out, _ in said)
    assert sorted(own + others) == list(range(64))
    assert sums == same_sums
    assert sum(sums) == sum(range(64))
    assert places == [[0, 2], [0, 1]]
    assert other_places == [[1, 2], [0, 1]]  # whoever holds the same rows is one rank
