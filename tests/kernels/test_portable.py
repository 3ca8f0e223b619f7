"""What only Linux has can be missing: the extension builds without it, and local files are read, checked and written.

The macro STREAMREC_PORTABLE takes out what differs between systems (memory straight from the kernel), and
`sitecustomize.py` what Python has on Linux alone. What is left is what any POSIX system has.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels.test_build import copy_of_the_sources

ROOT = Path(__file__).parents[2]

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
    built = run(copy, "setup.py", "build_ext", "--inplace", CFLAGS=f"{os.environ.get('CFLAGS', '')} {flags}")
    assert built.returncode == 0, built.stderr
    return copy


def run(copy: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {**os.environ, "PYTHONPATH": str(copy), **environment}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        inherited.pop(name, None)
    return subprocess.run([sys.executable, *arguments], cwd=copy, env=inherited, capture_output=True, text=True)


@pytest.mark.thorough
def test_local_files_are_read(portable: Path) -> None:
    done = run(portable, "-c", READS)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("tests", ["tests/kernels/test_block.py", "tests/storage/backends/test_local.py"])
def test_other_tests_hold_there(portable: Path, tests: str) -> None:
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    done = run(portable, "-m", "pytest", *options, tests)
    assert done.returncode == 0, done.stdout[-6000:]
