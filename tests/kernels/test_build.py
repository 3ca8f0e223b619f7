"""What runs when the extension is there, missing, or cannot be built."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "from streamrec import kernels; print(kernels.crc32c.__module__, kernels.crc32c(b'abc'))"


def python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs this Python in a directory, with additions to the environment."""
    keep = {name: value for name, value in os.environ.items() if name != "CC"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=keep | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return copy_of_the_sources(tmp_path)


def copy_of_the_sources(tmp_path: Path) -> Path:
    """The same in a directory that the caller has made."""
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "streamrec", tmp_path / "streamrec", ignore=ignore)
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_native_by_default() -> None:
    done = python("-c", PROGRAM, cwd=ROOT)
    assert done.stdout.split() == ["streamrec.kernels._native", str(0x364B3FB7)], done.stderr


def test_a_missing_extension_is_an_error_that_says_what_to_do(copy: Path) -> None:
    done = python("-c", PROGRAM, cwd=copy)
    assert done.returncode != 0
    assert "ImportError: streamrec's C extension" in done.stderr
    assert "pip install" in done.stderr


def test_a_failing_compiler_is_loud(copy: Path) -> None:
    done = python("setup.py", "build_ext", cwd=copy, CC="/bin/false")
    assert done.returncode != 0
    assert "streamrec's C extension did not build" in done.stderr
    assert "apt-get install gcc python3-dev" in done.stderr
