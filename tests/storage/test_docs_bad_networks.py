"""The page on bad networks says what is so."""

import doctest
from dataclasses import fields
from pathlib import Path

from streamrec import RetryPolicy
from streamrec.storage import Counts

PAGE = Path(__file__).parents[2] / "docs" / "bad-networks.md"


def test_its_examples_run() -> None:
    results = doctest.testfile(str(PAGE), module_relative=False)
    assert results.attempted > 10
    assert results.failed == 0


def test_it_names_every_setting_and_every_count() -> None:
    text = PAGE.read_text()
    for cls in (RetryPolicy, Counts):
        for field in fields(cls):
            assert f"`{field.name}`" in text
