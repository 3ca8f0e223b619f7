"""The pages name files that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"`((?:streamrec|tests|docs|benchmarks|examples|fuzz)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), f"{page.name} names {name}"
    for name in re.findall(
        r"`((?:storage|pipeline|shards|tfrecord|example|kernels|bridge|cli)/[\w./-]+\.(?:py|c|h))`", text
    ):
        assert (ROOT / "streamrec" / name).exists(), f"{page.name} names {name}"
    for name in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (page.parent / name).exists(), f"{page.name} links to {name}"


@pytest.mark.parametrize("page", [page for page in PAGES if "internals" in str(page)], ids=lambda page: page.name)
def test_modules_that_the_internals_name_exist(page: Path) -> None:
    """Also those that are named without their folder."""
    known = {path.name for path in (ROOT / "streamrec").rglob("*") if path.suffix in {".py", ".pyi", ".c", ".h"}}
    known |= {path.name for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")}
    text = page.read_text()
    assert [name for name in re.findall(r"`(?:[\w/]+/)?(\w+\.(?:py|c|h))`", text) if name not in known] == []
