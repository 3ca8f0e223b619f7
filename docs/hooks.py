"""Completes pages when mkdocs builds them.

`<!-- names of FOLDER -->` becomes the public names of a folder and their docstrings;
`<!-- adapters -->` all adapters. Pages install extras from a checkout; once `INSTALL` names the
package on PyPI, so do they. Each page shows the version, and links to the repository:
$REPOSITORY_URL, or git's remote "origin".
"""

import os
import pkgutil
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import streamrec
from streamrec.errors import INSTALL
from streamrec.lazy import IMPORT

STUB = Path(streamrec.__file__).with_suffix(".pyi").read_text()
NAMES_OF = {
    module.removeprefix("streamrec."): re.findall(r"\w+", names)
    for module, names in IMPORT.findall(STUB)
    if module != "streamrec"
}
NO_ADAPTERS = {*NAMES_OF, "arguments", "bridge", "cli", "html", "kernels", "lazy"}
FIRST = [
    *(
        "TFRecordDataset",
        "Dataset",
        "DatasetIterator",
        "AsyncDatasetIterator",
        "Stats",
        "open_shard",
    ),
    *(
        "ShardWriter",
        "TFRecordWriter",
        "parse_example",
        "FixedLenFeature",
        "encode_example",
        "StreamrecError",
        "Frames",
    ),
]
"""What people use first, in the order of the reference."""
FROM_A_CHECKOUT = re.compile(r"'\.(\[[\w,-]+\])'(`?) in a checkout of streamrec")
"""How pages install an extra until the first release."""


def on_config(config: Any) -> Any:
    """Called by mkdocs before it builds: adds the version and the repository."""
    command = ["git", "remote", "get-url", "origin"]
    origin = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    origin = re.sub(r"^git@([^:]+):", r"https://\1/", origin).removesuffix(".git")
    config.repo_url = os.environ.get("REPOSITORY_URL") or (
        origin if origin.startswith("https://") else None
    )
    config.repo_name = "Repository"
    config.site_name = f"streamrec {version('streamrec')}"
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    if "streamrec{extra}" in INSTALL:
        markdown = FROM_A_CHECKOUT.sub(r"'streamrec\1'\2", markdown)
    markdown = re.sub(
        r"<!-- names of (\w+) -->", lambda found: references(NAMES_OF[found[1]]), markdown
    )
    return markdown.replace("<!-- adapters -->", references(adapters()))


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs for each page: tables of three columns and more fit into a narrow window."""
    return re.sub("<table>.*?</table>", lambda table: label_cells(table[0]), html, flags=re.DOTALL)


def label_cells(table: str) -> str:
    """Each cell gets the heading of its column as `data-label`: assets/site.css shows it where
    the cells of a row stand one below the other.
    """
    headings = [re.sub("<.*?>", "", head) for head in re.findall("<th.*?>(.*?)</th>", table)]
    if len(headings) < 3:
        return table

    def label(row: re.Match[str]) -> str:
        columns = iter(headings)
        return re.sub("<td", lambda _: f'<td data-label="{next(columns)}"', row[0])

    labelled = re.sub("<tr>.*?</tr>", label, table, flags=re.DOTALL)
    return labelled.replace("<table>", '<table class="wide">', 1)


def references(names: list[str] | tuple[str, ...]) -> str:
    """The lines that mkdocstrings replaces by docstrings, with the names of FIRST before all
    others.
    """
    ordered = sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    return "\n\n".join(f"::: streamrec.{name}" for name in ordered)


def adapters() -> list[str]:
    """The modules outside of the folders."""
    modules = [module.name for module in pkgutil.iter_modules(streamrec.__path__)]
    return [name for name in modules if name not in NO_ADAPTERS and not name.startswith("_")]
