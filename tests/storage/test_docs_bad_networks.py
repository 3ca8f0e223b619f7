"""The page on bad networks says what is so."""

from dataclasses import fields
from pathlib import Path

from streamrec import RetryPolicy
from streamrec.storage import Counts

PAGE = Path(__file__).parents[2] / "docs" / "bad-networks.md"


def test_it_names_every_setting_and_every_count() -> None:
    text = PAGE.read_text()
    for cls in (RetryPolicy, Counts):
        for field in fields(cls):
            assert f"`{field.name}`" in text
