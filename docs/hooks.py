"""Fills the reference: `<!-- names of ROOM -->` becomes all public names of a room, with their docstrings."""

import re
from typing import Any

from streamrec import _NAMES_OF

MARK = re.compile(r"^<!-- names of (\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return MARK.sub(lambda mark: "\n\n".join(f"::: streamrec.{name}" for name in _NAMES_OF[mark[1]]), markdown)
