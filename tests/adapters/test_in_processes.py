"""streamrec.jax, streamrec.grain, streamrec.ray and `--ray`, in processes of their own: with JAX,
forks warn.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from streamrec.errors import install_command
from tests.adapters.conftest import free_port, needs, write_examples

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(900),  # a cluster of Ray takes a minute to start where much else runs
]

RAY = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_worker_niceness": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def devices(count: int) -> dict[str, str]:
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}", "JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize(
    ("package", "options", "environment"),
    [
        pytest.param("ray", ["-W", "default"], RAY, marks=needs("ray")),
        pytest.param("grain", [], devices(8), marks=needs("grain")),
        pytest.param("jax", [], devices(8), marks=needs("jax")),
    ],
)
def test_the_cases_of_an_adapter(
    package: str, options: list[str], environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *options]
    command.append(str(Path(__file__).with_name(f"{package}_cases.py")))
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
def test_processes_read_their_parts_of_global_batches(tmp_path: Path) -> None:
    for shard in range(2):
        write_examples(
            tmp_path / f"train-{shard}", ({"id": 32 * shard + number} for number in range(32))
        )
    port, command = free_port(), [sys.executable, "-m", "tests.adapters.ranked", "jax"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", port, str(tmp_path / "train-*")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **devices(4)},
        )
        for rank in range(2)
    ]
    said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    (own, sums, *places), (others, same_sums, *other_places) = (
        json.loads(out.splitlines()[-1]) for out, _ in said
    )
    assert sorted(own + others) == list(range(64))
    assert sums == same_sums
    assert sum(sums) == sum(range(64))
    assert places == [[0, 2], [0, 1]]
    assert other_places == [[1, 2], [0, 1]]  # processes that hold the same rows are one rank


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_the_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('none', name='ray')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    (tmp_path / "a.tfrecord").write_bytes(b"")
    command = [
        sys.executable,
        "-m",
        "streamrec",
        "verify",
        "--ray",
        "local",
        str(tmp_path / "a.tfrecord"),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"streamrec: --ray needs another package: {install_command('ray')}\n"
