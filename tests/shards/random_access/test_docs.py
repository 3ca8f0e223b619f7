"""The page on random access says what is so."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "random-access.md"


def test_its_examples_run() -> None:
    results = doctest.testfile(str(PAGE), module_relative=False)
    assert results.attempted > 8
    assert results.failed == 0
