"""The extension: there, missing, not to be built; without what only Linux has; and its CRC32C on ARM.

The macro STREAMREC_PORTABLE takes out what differs between systems (memory straight from the kernel), and
`sitecustomize.py` what Python has on Linux alone. What is left is what any POSIX system has.

On ARM itself test_crc32c.py covers its CRC32C. Elsewhere it needs two Debian packages:
apt-get install gcc-aarch64-linux-gnu qemu-user-static (continuous integration installs them).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamrec.kernels import _native

ROOT = Path(__file__).parents[2]
PROGRAM = "from streamrec import kernels; print(kernels.crc32c.__module__, kernels.crc32c(b'abc'))"


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs this Python in a directory, with additions to the environment."""
    inherited = {**os.environ, "PYTHONPATH": str(folder), **environment}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        inherited.pop(name, None)
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=inherited, capture_output=True, text=True)


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
    done = python(ROOT, "-c", PROGRAM)
    assert done.stdout.split() == ["streamrec.kernels._native", str(0x364B3FB7)], done.stderr


def test_a_missing_extension_is_an_error_that_says_what_to_do(copy: Path) -> None:
    done = python(copy, "-c", PROGRAM)
    assert done.returncode != 0
    assert "ImportError: streamrec's C extension" in done.stderr
    assert "pip install" in done.stderr


def test_a_failing_compiler_is_loud(copy: Path) -> None:
    done = python(copy, "setup.py", "build_ext", CC="/bin/false")
    assert done.returncode != 0
    assert "streamrec's C extension did not build" in done.stderr
    assert "apt-get install gcc python3-dev" in done.stderr


COMPILER = shutil.which("aarch64-linux-gnu-gcc")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "streamrec" / "kernels" / "src"


def built(compiler: str, program: Path, *flags: str) -> Path:
    files = [HERE / "arm_selftest.c", *sorted((SOURCES / "crc32c").glob("crc32c_*.c"))]
    flags = (f"-I{SOURCES}", "-std=c11", "-O3", "-Wall", "-Wextra", "-Werror", *flags, "-o", str(program))
    subprocess.run([compiler, *flags, *map(str, files)], check=True)
    return program


@pytest.mark.thorough  # tests of the extension that is built run these too
def test_this_machine(tmp_path: Path) -> None:
    program = built(os.environ.get("CC", "cc"), tmp_path / "selftest")
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == list(_native.crc32c_implementations())
    assert done.returncode == 0


@pytest.mark.skipif(not (COMPILER and EMULATOR), reason="apt-get install gcc-aarch64-linux-gnu qemu-user-static")
@pytest.mark.parametrize(
    ("processor", "implementations"),
    [("max", ["armv8-crc", "table"]), ("cortex-a57", ["armv8-crc", "table"])],
)
def test_arm_implementations(tmp_path: Path, processor: str, implementations: list[str]) -> None:
    program = built(str(COMPILER), tmp_path / "selftest", "-static")
    done = subprocess.run([str(EMULATOR), "-cpu", processor, str(program)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == implementations
    assert done.returncode == 0


WITHOUT_LINUX = """
import os
for name in list(vars(os)):
    if name in {"preadv", "pwritev", "sched_getaffinity", "memfd_create"} or name.startswith(("RWF_", "posix_fadvise")):
        delattr(os, name)
"""

READS = """
from pathlib import Path
import streamrec

assert not hasattr(__import__("os"), "preadv")
path = Path("records.tfrecord")
path.write_bytes(streamrec.encode_records([b"%d" % number for number in range(100_000)]))
assert len(list(streamrec.TFRecordDataset(str(path)))) == 100_000
"""


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The project without what only Linux has, built."""
    copy = copy_of_the_sources(tmp_path_factory.mktemp("portable"))
    (copy / "sitecustomize.py").write_text(WITHOUT_LINUX)
    (copy / "tests").symlink_to(ROOT / "tests")
    flags = "-DSTREAMREC_PORTABLE -Werror"
    built = python(copy, "setup.py", "build_ext", "--inplace", CFLAGS=f"{os.environ.get('CFLAGS', '')} {flags}")
    assert built.returncode == 0, built.stderr
    return copy


@pytest.mark.thorough
def test_local_files_are_read(portable: Path) -> None:
    done = python(portable, "-c", READS)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("tests", ["tests/kernels/test_block.py", "tests/storage/backends/test_local.py"])
def test_other_tests_hold_there(portable: Path, tests: str) -> None:
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    done = python(portable, "-m", "pytest", *options, tests)
    assert done.returncode == 0, done.stdout[-6000:]
