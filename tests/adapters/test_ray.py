"""streamrec.ray and `--ray`, in a process of their own, which has a cluster on this machine."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(900),  # a cluster takes a minute to start where much else runs
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]


def test_cases() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-W", "default"]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"RAY_raylet_start_wait_time_s": "300", "RAY_worker_niceness": "0"}
    environment |= {"RAY_DATA_DISABLE_PROGRESS_BARS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    file = Path(__file__).with_name("ray_cases.py")
    done = subprocess.run([*command, str(file)], env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('none', name='ray')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    (tmp_path / "a.tfrecord").write_bytes(b"")
    command = [sys.executable, "-m", "streamrec", "verify", "--ray", "local", str(tmp_path / "a.tfrecord")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        "streamrec: --ray needs another package: pip install 'streamrec[ray]'\n",
    )
