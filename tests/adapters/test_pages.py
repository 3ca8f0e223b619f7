"""docs/pytorch.md and docs/jax.md: their snippets run, one after the other, as a program whose data lies in S3."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.conftest import client_environment
from tests.servers.real import Store

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("page", "packages"),
    [("pytorch.md", ["torch", "torchdata", "lightning"]), ("jax.md", ["jax", "grain"])],
)
def test_snippets_run(tmp_path: Path, s3_store: Store, page: str, packages: list[str]) -> None:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    snippets = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(snippets) >= 4
    program, places = re.subn('"data/', f'"{s3_store.url}/{page}/', "\n".join(snippets))
    assert places >= 2
    (tmp_path / "page.py").write_text(program)
    environment = {
        **os.environ,
        **client_environment(s3_store),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
