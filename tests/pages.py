"""Runs the snippets of a page from top to bottom in one directory, as a reader would.

What each kind of fenced block means:

- `python` with `>>>`: examples of doctest, which share one namespace. `...` in the output stands for anything.
- `python title="NAME"`: a file that the reader writes.
- `console`: commands behind `$ `, each followed by what it prints; `...` stands for anything there, too. A line
  `[exit code N]` behind the output says that the command ends with N.
- `bash` and all others: for reading only, such as lines that install packages.

A block that names torch, TensorFlow, JAX, Ray or their like runs where that is installed, as in CI.
"""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w*)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)
TITLE = re.compile(r'title="([^"]+)"')
PEERS = ("torch", "torchdata", "lightning", "accelerate", "tensorflow", "jax", "grain", "ray")
EXIT_CODE = re.compile(r"\[exit code (\d+)\]\n\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what stands behind the language, its text, and the line that it begins at."""

    kind: str
    info: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, if it is one."""
        title = TITLE.search(self.info)
        return title and title[1]


def pages() -> list[Path]:
    """README.md and all pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        body = re.sub(f"^{found['indent']}", "", found["text"], flags=re.M)
        yield Block(found["kind"], found["info"], body, text.count("\n", 0, found.start()) + 2)


def peers_in(block: Block) -> list[str]:
    """The packages that a block names and that the library never needs."""
    return [peer for peer in PEERS if re.search(rf"\b{peer}\b", block.text)]


def lacks(block: Block) -> list[str]:
    """Those of them that are not installed."""
    return [peer for peer in peers_in(block) if importlib.util.find_spec(peer) is None]


def runs(block: Block) -> bool:
    """Whether `run` does something with a block."""
    return block.kind == "console" or (block.kind == "python" and (block.file is not None or ">>> " in block.text))


def run(page: Path, environment: Mapping[str, str], names: dict[str, Any]) -> None:
    """Runs a page's blocks in the working directory.

    Args:
        page: The page.
        environment: Environment variables of the commands.
        names: The namespace of the examples.

    Raises:
        AssertionError: An example or a command printed something else than the page says.
    """
    for block in blocks(page):
        if lacks(block):
            continue
        if block.file is not None:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.text)
        elif block.kind == "console":
            run_commands(block, page, environment)
        elif runs(block):
            run_examples(block, page, names)


def run_examples(block: Block, page: Path, names: dict[str, Any]) -> None:
    """Runs a block of `>>>` examples."""
    test = doctest.DocTestParser().get_doctest(block.text, names, page.name, str(page), block.line - 1)
    test.globs = names  # not the copy that doctest makes, so that the next block has what this one defines
    printed: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=printed.append, clear_globs=False)
    assert not printed, "".join(printed)


def run_commands(block: Block, page: Path, environment: Mapping[str, str]) -> None:
    """Runs a block of commands."""
    beginning, *parts = re.split(r"^\$ ", block.text, flags=re.M)
    assert not beginning, f"{page.name}, line {block.line}: output before the first command"
    for part in parts:
        command, expected = command_and_output(part)
        code = EXIT_CODE.search(expected)
        wanted = EXIT_CODE.sub("", expected)
        done = subprocess.run(
            ["bash", "-c", command],
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        place = f"{page.name}, line {block.line}: $ {command}\nprinted\n{done.stdout}"
        assert done.returncode == (int(code[1]) if code else 0), f"{place}and ended with {done.returncode}"
        assert doctest.OutputChecker().check_output(wanted, done.stdout, FLAGS), f"{place}but the page says\n{wanted}"


def command_and_output(part: str) -> tuple[str, str]:
    """A command, which may go on behind a backslash, and what it prints."""
    found = re.match(r"(?:[^\n]*\\\n)*[^\n]*\n", part)
    assert found
    return found[0].rstrip("\n"), part[found.end() :]
