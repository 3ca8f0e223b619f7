"""The ARMv8 CRC32C on another machine: cross-compiled, and run by an emulator.

On ARM itself test_crc32c.py covers it. Here it needs two Debian packages:
apt-get install gcc-aarch64-linux-gnu qemu-user-static (continuous integration installs them).
"""

import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = shutil.which("aarch64-linux-gnu-gcc")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "streamrec" / "kernels" / "src"


@pytest.mark.skipif(not (COMPILER and EMULATOR), reason="apt-get install gcc-aarch64-linux-gnu qemu-user-static")
@pytest.mark.parametrize(
    ("processor", "implementations"),
    [("max", ["armv8-crc", "table"]), ("cortex-a57", ["armv8-crc", "table"])],
)
def test_arm_implementations(tmp_path: Path, processor: str, implementations: list[str]) -> None:
    """Both against the definition, bit by bit."""
    program = tmp_path / "selftest"
    files = [HERE / "arm_selftest.c", *sorted(SOURCES.glob("crc32c_*.c"))]
    flags = ["-std=c11", "-O3", "-Wall", "-Wextra", "-Werror", "-static", "-o", str(program)]
    subprocess.run([str(COMPILER), *flags, *map(str, files)], check=True)
    done = subprocess.run([str(EMULATOR), "-cpu", processor, str(program)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == implementations
    assert done.returncode == 0
