"""The wheel of `make wheel`, in an environment without a compiler: it installs, writes, and streams
from a server.

    make test-wheel

STREAMREC_WHEEL says where it lies, STREAMREC_SDIST where the source archive does.
"""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.servers.real import Store

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
WHEEL = Path(os.environ.get("STREAMREC_WHEEL", ""))
SDIST = Path(os.environ.get("STREAMREC_SDIST", ""))

pytestmark = [
    pytest.mark.skipif(
        WHEEL.suffix != ".whl", reason="`make test-wheel` builds the wheel, and runs these tests"
    ),
    pytest.mark.timeout(600),
]


def pythons() -> list[str]:
    """This interpreter, and the newest other one that pyenv has."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    others = [
        path
        for path in versions.glob("3.1[2-9]*/bin/python3")
        if not re.search(r"[ab]\d|rc", path.parts[-3])
    ]
    newest = sorted(
        others, key=lambda path: [int(part) for part in re.findall(r"\d+", path.parts[-3])]
    )[-1:]
    return [sys.executable, *map(str, newest)]


def test_its_name_says_where_it_runs() -> None:
    # older systems have a second name
    system = r"(manylinux\w+\.)?manylinux_2_\d+_(x86_64|aarch64)|macosx_\w+"
    assert re.fullmatch(rf"streamrec-[\d.]+-cp311-abi3-({system})\.whl", WHEEL.name)


def test_it_holds_the_package_and_no_tests() -> None:
    names = zipfile.ZipFile(WHEEL).namelist()
    for wanted in (
        "__init__.pyi",
        "py.typed",
        "kernels/_native.abi3.so",
        "kernels/_native.pyi",
        "cli/program.py",
    ):
        assert f"streamrec/{wanted}" in names
    assert {name.split("/")[0] for name in names} <= {
        "streamrec",
        f"{WHEEL.name.split('-cp')[0]}.dist-info",
    }
    assert not [name for name in names if name.endswith((".c", ".h")) or "/tests/" in name]
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "streamrec").rglob("*.py")}
    assert modules <= set(names)


def test_the_source_archive_holds_all_that_a_build_needs() -> None:
    """`make wheel` builds the wheel from it; here, that no header was left out."""
    with tarfile.open(SDIST) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "streamrec").rglob("*.[ch]")}
    assert sources | {"LICENSE", "README.md", "pyproject.toml", "setup.py"} <= names


@pytest.mark.parametrize("python", pythons())
def test_it_streams_from_a_server_where_no_compiler_is(
    python: str, http_store: Store, tmp_path: Path
) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    environment["PATH"] = str(tmp_path / "nothing")
    home = tmp_path / "venv"
    for command in (
        [python, "-m", "venv", home],
        [
            home / "bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--only-binary",
            ":all:",
            f"{WHEEL.absolute()}[http]",
        ],
    ):
        done = subprocess.run(
            list(map(str, command)), env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    folder = http_store.directory / "wheel" / tmp_path.name
    folder.mkdir(parents=True)
    done = subprocess.run(
        [
            str(home / "bin/python"),
            str(HERE / "installed.py"),
            f"{http_store.url}/wheel/{tmp_path.name}",
            str(folder),
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("all is well")
