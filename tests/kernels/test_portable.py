"""What only Linux has can be missing: the extension builds without it, and local files are read, checked and written.

The macro STREAMREC_PORTABLE takes out what differs between systems (mapped files, their guard, memory straight from the
kernel), and `sitecustomize.py` what Python has on Linux alone. What is left is what any POSIX system has.
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

MAPS = """
from pathlib import Path
import streamrec
from streamrec import kernels

assert not hasattr(__import__("os"), "preadv")
path = Path("records.tfrecord")
path.write_bytes(streamrec.encode_records([b"%d" % number for number in range(100_000)]))
with path.open("rb") as file:
    assert not kernels.is_safe_to_map(file.fileno())
    assert not kernels.is_cached(file.fileno(), 0, 1, 1)
assert kernels.lost_pages() == []
assert len(list(streamrec.TFRecordDataset(str(path)))) == 100_000
try:
    list(streamrec.TFRecordDataset(str(path), memory_map=True))
except streamrec.StreamrecError as error:
    print(error)
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
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "STREAMREC_PURE"):
        inherited.pop(name, None)
    return subprocess.run([sys.executable, *arguments], cwd=copy, env=inherited, capture_output=True, text=True)


@pytest.mark.thorough
def test_local_files_are_read_where_nothing_can_be_mapped(portable: Path) -> None:
    done = run(portable, "-c", MAPS)
    assert done.returncode == 0, done.stderr
    assert "records.tfrecord" in done.stdout
    assert "files cannot be mapped on this system" in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("tests", ["tests/kernels/test_block.py", "tests/storage/backends/test_local.py"])
def test_other_tests_hold_there(portable: Path, tests: str) -> None:
    """All but those of mapped files."""
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-k", "not view"]
    done = run(portable, "-m", "pytest", *options, tests)
    assert done.returncode == 0, done.stdout[-6000:]
