"""Runs the snippets of a page from top to bottom in one directory, as a reader would.

What each kind of fenced block means:

- `python`: a program; the programs of a page share one namespace. A comment `# -> OUTPUT` says what
  the statement that it follows prints, or which value it has; comments `#    ` on the next lines
  continue it.
- `text title="Output"` after a program: what the rest of the program prints.
- `python title="NAME"`: a file that the reader writes.
- `console`: commands after `$ `, each followed by its output. A line `[exit code N]` after the
  output says that the command ends with N.
- `bash` and all others: for reading only, such as lines that install packages.

`...` in an output stands for anything. A block that names torch, TensorFlow, JAX, Ray or their like
runs where that is installed, as in CI; so do the blocks that use the names it defines.
"""

import ast
import bisect
import contextlib
import doctest
import importlib.util
import io
import itertools
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCTEST_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<kind>\w*)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S
)
TITLE = re.compile(r'title="([^"]+)"')
PEERS = (
    "torch",
    "torchdata",
    "torchvision",
    "lightning",
    "accelerate",
    "transformers",
    "keras",
    "tensorflow",
    "jax",
    "orbax",
    "grain",
    "ray",
)
RESULT = "# -> "
RESULT_GOES_ON = "#    "
OUTPUT = "Output"
EXIT_CODE = re.compile(r"\[exit code (\d+)\]\n\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the rest of that line, its text, and the number of the text's
    first line.
    """

    kind: str
    info: str
    text: str
    line: int

    @property
    def title(self) -> str | None:
        """Its title: of Python, the name of the file that it is."""
        title = TITLE.search(self.info)
        return title and title[1]


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        body = re.sub(f"^{found['indent']}", "", found["text"], flags=re.M)
        yield Block(found["kind"], found["info"], body, text.count("\n", 0, found.start()) + 2)


def peers_in(block: Block) -> list[str]:
    """The packages that a block names and that the library never needs."""
    return [peer for peer in PEERS if re.search(rf"\b{peer}\b", block.text)]


def run(page: Path, environment: Mapping[str, str], names: dict[str, Any]) -> None:
    """Runs a page's blocks in the working directory: commands in `environment`, Python in the
    namespace `names`.
    """
    undefined: set[str] = set()
    for block, following in itertools.zip_longest(found := list(blocks(page)), found[1:]):
        missing = any(importlib.util.find_spec(peer) is None for peer in peers_in(block))
        if missing or (block.kind == "python" and undefined & names_in(block, ast.Load)):
            undefined |= (
                names_in(block, ast.Store) - names.keys() if block.kind == "python" else set()
            )
            continue
        if block.kind == "console":
            run_commands(block, page, environment)
        elif block.kind == "python" and block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text)
        elif block.kind == "python":
            output = following.text if following and following.title == OUTPUT else ""
            run_python(block, page, names, output)


def names_in(block: Block, context: type[ast.expr_context]) -> set[str]:
    """The names that a block uses (Load), or that it defines (Store)."""
    tree = list(ast.walk(ast.parse(block.text)))
    found = {
        node.id for node in tree if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }
    if context is ast.Store:
        found |= {node.name for node in tree if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        found |= {
            alias.asname or alias.name.split(".")[0]
            for node in tree
            for alias in getattr(node, "names", ())
            if isinstance(alias, ast.alias)
        }
    return found


def run_python(block: Block, page: Path, names: dict[str, Any], output: str) -> None:
    """Runs a block statement by statement, and compares what it prints with its comments, else with
    `output`.
    """
    statements = ast.parse(block.text).body
    stated = outputs(block.text, [statement.lineno for statement in statements])
    unstated = ""
    for statement, wanted in zip(statements, stated, strict=True):
        ast.increment_lineno(statement, block.line - 1)
        # A statement in a program of its own prints its value, as in a Python shell.
        tree = ast.Interactive([statement]) if wanted else ast.Module([statement], [])
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(tree, str(page), "single" if wanted else "exec"), names)
        if wanted:
            check_output(wanted, printed.getvalue(), f"{page.name}, line {statement.lineno}")
        else:
            unstated += printed.getvalue()
    check_output(output, unstated, f"{page.name}, line {block.line}")


def outputs(text: str, beginnings: list[int]) -> list[str]:
    """What the comments of a program say that its statements print: one text for each statement."""
    stated = [""] * len(beginnings)
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if token.string.startswith(RESULT) or (
            line == last + 1 and token.string.startswith(RESULT_GOES_ON)
        ):
            last = line
            stated[bisect.bisect(beginnings, line) - 1] += token.string[len(RESULT) :] + "\n"
    return stated


def check_output(wanted: str, printed: str, place: str) -> None:
    same = doctest.OutputChecker().check_output(wanted, printed, DOCTEST_FLAGS)
    assert same, f"{place} printed\n{printed}but the page says\n{wanted}"


def run_commands(block: Block, page: Path, environment: Mapping[str, str]) -> None:
    beginning, *parts = re.split(r"^\$ ", block.text, flags=re.M)
    assert not beginning, f"{page.name}, line {block.line}: output before the first command"
    for part in parts:
        command, expected = command_and_output(part)
        code = EXIT_CODE.search(expected)
        wanted = EXIT_CODE.sub("", expected)
        done = subprocess.run(
            ["bash", "-c", command],
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        place = f"{page.name}, line {block.line}: $ {command}"
        ended = done.returncode
        assert ended == (int(code[1]) if code else 0), (
            f"{place} ended with {ended} and printed\n{done.stdout}"
        )
        check_output(wanted, done.stdout, place)


def command_and_output(part: str) -> tuple[str, str]:
    """A command, which may continue after a backslash, and what it prints."""
    found = re.match(r"(?:[^\n]*\\\n)*[^\n]*\n", part)
    assert found
    return found[0].rstrip("\n"), part[found.end() :]
