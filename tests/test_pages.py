"""README.md and the pages of docs/: their snippets run, the site builds, and its links lead somewhere."""

import gc
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs

from tests.pages import FENCE, ROOT, blocks, pages, peers_in, run, runs
from tests.servers.real import KEY, SECRET, Store

PROGRAMS = {"pytorch.md", "jax.md", "ray.md"}
"""Pages whose snippets are programs of their own, which tests/adapters runs."""

SNIPPETS = [
    pytest.param(page, marks=[pytest.mark.peer] if any(map(peers_in, blocks(page))) else [])
    for page in pages()
    if any(runs(block) for block in blocks(page))
]


def identity(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def bucket(s3_store: Store) -> Iterator[dict[str, str]]:
    """An empty bucket, `s3://my-bucket`, and the environment in which it is found without storage options."""
    client = s3fs.S3FileSystem(**s3_store.options, skip_instance_cache=True)
    client.mkdir("my-bucket")
    yield {
        "AWS_ENDPOINT_URL": s3_store.endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    client.rm("my-bucket", recursive=True)


@pytest.mark.timeout(600)  # each command starts an interpreter
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata, with torch 2.13
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # a DataLoader's workers
@pytest.mark.parametrize("page", SNIPPETS, ids=identity)
def test_snippets(page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each snippet runs as it stands, in one directory, and prints what the page says."""
    monkeypatch.chdir(tmp_path)
    variables = request.getfixturevalue("bucket") if "my-bucket" in page.read_text() else {}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    names = {"__name__": "__main__"}
    run(page, {"COLUMNS": "100", "NO_COLOR": "1"}, names)
    names.clear()
    gc.collect()  # ends the workers of a loader that the page leaves open


@pytest.mark.parametrize("page", [page for page in pages() if page.name not in PROGRAMS], ids=identity)
def test_python_runs(page: Path) -> None:
    """A snippet of Python has examples with their results, or is a file that a later command runs."""
    shown = [f"line {block.line}" for block in blocks(page) if block.kind == "python" and not runs(block)]
    assert not shown, f"{identity(page)}: Python that no test runs: {', '.join(shown)}"


@pytest.mark.parametrize("page", pages(), ids=identity)
def test_paragraphs_are_short(page: Path) -> None:
    """No paragraph is longer than six lines of 120 characters."""
    text = FENCE.sub("\n\n", page.read_text())
    paragraphs = [part.strip() for part in re.split(r"\n\n|\n(?=- |\d+\. )", text)]
    prose = [part for part in paragraphs if not part.startswith("|")]
    long = [part[:60] for part in prose if part.count("\n") >= 6 or len(part) > 6 * 120]
    assert not long, f"{identity(page)}: paragraphs of more than six lines: {long}"


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_site_builds(tmp_path: Path) -> None:
    """`make docs`: a link to nothing, or a name that the reference does not find, is an error."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "tutorial" / "index.html").exists()
