"""All CRC32C implementations without Python: those of this machine, and ARMv8's cross-compiled and emulated.

On ARM itself test_crc32c.py covers it. Elsewhere it needs two Debian packages:
apt-get install gcc-aarch64-linux-gnu qemu-user-static (continuous integration installs them).
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from streamrec.kernels import _native

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
