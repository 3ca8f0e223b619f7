"""Keras on torch and on JAX, each in a process of its own: it chooses its backend once."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.adapters.conftest import ROOT, needs
from tests.pages import blocks

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed"),
]


@pytest.mark.parametrize(
    "backend",
    [pytest.param("torch", marks=needs("torch")), pytest.param("jax", marks=needs("jax"))],
)
def test_keras_trains_and_resumes_on_each_backend(backend: str, tmp_path: Path) -> None:
    """The programs of docs/guides/keras.md, then cases that its readers run into."""
    page = [block.text for block in blocks(ROOT / "docs/guides/keras.md") if block.kind == "python"]
    cases = (ROOT / "tests/adapters/keras_cases.py").read_text()
    program = "\n".join(page).replace(
        '"KERAS_BACKEND"] = "torch"', f'"KERAS_BACKEND"] = "{backend}"'
    )
    (tmp_path / "program.py").write_text(f"{program}\n{cases}")
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == f"all cases ran on {backend}"
