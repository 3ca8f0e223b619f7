"""The extension: there, missing, not to be built; without what only Linux has; and its CRC32C on
ARM.

The macro STREAMREC_PORTABLE takes out what differs between systems (memory straight from the
kernel), and `sitecustomize.py` what Python has on Linux alone. What is left is what any POSIX
system has.

On ARM itself test_crc32c.py covers its CRC32C. Elsewhere it needs two Debian packages:
apt-get install gcc-aarch64-linux-gnu qemu-user-static (continuous integration installs them).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "from streamrec import kernels; print(kernels.crc32c.__module__, kernels.crc32c(b'abc'))"


def run_python(
    folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs this Python in a directory, with additions to the environment."""
    inherited = {**os.environ, "PYTHONPATH": str(folder), **environment}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        inherited.pop(name, None)
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=inherited, capture_output=True, text=True
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources, without an extension."""
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "streamrec", tmp_path / "streamrec", ignore=ignore)
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_native_by_default() -> None:
    done = run_python(ROOT, "-c", PROGRAM)
    assert done.stdout.split() == ["streamrec.kernels._native", str(0x364B3FB7)], done.stderr


def test_a_missing_extension_is_an_error_that_says_what_to_do(copy: Path) -> None:
    done = run_python(copy, "-c", PROGRAM)
    assert done.returncode != 0
    assert "ImportError: streamrec's C extension" in done.stderr
    # In a checkout after `pip install .`, installing it again would change nothing.
    assert f"the streamrec of the checkout {copy}, which Python finds before" in done.stderr
    assert "pip install -e ." in done.stderr
    (copy / "setup.py").unlink()
    done = run_python(copy, "-c", PROGRAM)
    assert "ImportError: streamrec's C extension" in done.stderr
    assert "pip install --force-reinstall" in done.stderr


def test_a_failing_compiler_is_loud(copy: Path) -> None:
    done = run_python(copy, "setup.py", "build_ext", CC="/bin/false")
    assert done.returncode != 0
    assert "streamrec's C extension did not build" in done.stderr
    assert "apt-get install gcc python3-dev" in done.stderr


COMPILER = shutil.which("aarch64-linux-gnu-gcc")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "streamrec" / "kernels" / "src"


@pytest.mark.skipif(
    not (COMPILER and EMULATOR), reason="apt-get install gcc-aarch64-linux-gnu qemu-user-static"
)
@pytest.mark.parametrize("processor", ["max", "cortex-a57"])
def test_arm_implementations(tmp_path: Path, processor: str) -> None:
    program = str(tmp_path / "selftest")
    files = [HERE / "arm_selftest.c", *sorted((SOURCES / "crc32c").glob("crc32c_*.c"))]
    flags = [
        f"-I{SOURCES}",
        "-std=c11",
        "-O3",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-static",
        "-o",
        program,
    ]
    subprocess.run([str(COMPILER), *flags, *map(str, files)], check=True)
    done = subprocess.run(
        [str(EMULATOR), "-cpu", processor, program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["armv8-crc", "table"]
    assert done.returncode == 0


WITHOUT_LINUX = """
import os
for name in list(vars(os)):
    if name in {"preadv", "pwritev", "sched_getaffinity", "memfd_create"} or name.startswith(("RWF_", "posix_fadvise")):
        delattr(os, name)
"""  # noqa: E501


@pytest.mark.thorough
def test_without_what_only_linux_has(copy: Path) -> None:
    """The extension is built, and other tests hold there."""
    (copy / "sitecustomize.py").write_text(WITHOUT_LINUX)
    (copy / "tests").symlink_to(ROOT / "tests")
    assert "no attribute 'preadv'" in run_python(copy, "-c", "import os; os.preadv").stderr
    flags = f"{os.environ.get('CFLAGS', '')} -DSTREAMREC_PORTABLE -Werror"
    built = run_python(copy, "setup.py", "build_ext", "--inplace", CFLAGS=flags)
    assert built.returncode == 0, built.stderr
    tests = ["tests/kernels/test_block.py", "tests/storage/backends/test_local.py"]
    done = run_python(copy, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout[-6000:]
