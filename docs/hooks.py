"""Fills the reference when mkdocs builds it.

`<!-- names of ROOM -->` becomes all public names of a room, with their docstrings; `<!-- adapters -->` all adapters.
"""

import pkgutil
import re
from typing import Any

import streamrec

NAMES_OF = streamrec._NAMES_OF
NO_ADAPTERS = {*NAMES_OF, "arguments", "bridge", "cli", "html", "interchange", "kernels", "lazy"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    markdown = re.sub(r"<!-- names of (\w+) -->", lambda mark: references(NAMES_OF[mark[1]]), markdown)
    return markdown.replace("<!-- adapters -->", references(adapters()))


def references(names: list[str] | tuple[str, ...]) -> str:
    """The lines that mkdocstrings replaces by docstrings."""
    return "\n\n".join(f"::: streamrec.{name}" for name in names)


def adapters() -> list[str]:
    """The modules beside the rooms."""
    modules = [module.name for module in pkgutil.iter_modules(streamrec.__path__)]
    return [name for name in modules if name not in NO_ADAPTERS and not name.startswith("_")]
