"""The package stays small enough for one person to carry: ceilings that may only fall.

A change that makes one of these numbers fall lowers its ceiling in the same commit. A number is a means: do not meet
one by longer lines, denser code or fewer docstrings of public names.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import streamrec

PACKAGE = Path(streamrec.__file__).parent
ROOT = PACKAGE.parent
SMALL_FILE_LINES = 60


@cache
def trees() -> Mapping[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def nodes() -> tuple[tuple[Path, ast.AST], ...]:
    return tuple((path, node) for path, tree in trees().items() for node in ast.walk(tree))


def count_lines(paths: Iterator[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def class_names() -> Counter[str]:
    return Counter(node.name for _, node in nodes() if isinstance(node, ast.ClassDef))


def numeric_constants() -> list[str]:
    """Constants of modules and classes that are numbers, or computed from number literals alone."""
    found = []
    for path, tree in trees().items():
        bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
        for statement in (statement for body in bodies for statement in body):
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if isinstance(statement, ast.AnnAssign) and statement.value is not None:
                targets = [statement.target]
            names = [target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()]
            if names and is_number(statement.value):  # type: ignore[attr-defined]
                found += [f"{path.relative_to(ROOT)}: {name}" for name in names]
    return found


def is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return type(value.value) in (int, float)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    return isinstance(value, ast.BinOp) and is_number(value.left) and is_number(value.right)


def foreign_private_names() -> set[str]:
    """Private attributes that the package uses and does not define: they belong to other libraries."""
    private = re.compile(r"_[a-zA-Z]\w*")
    used, ours = set(), set()
    for _, node in nodes():
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                ours.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.alias(asname=str(name)):
                ours.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                ours.add(name)
            case ast.Attribute(attr=name) if private.fullmatch(name):
                used.add(name)
            case ast.ImportFrom(module=str(module), names=names) if not module.startswith("streamrec"):
                used |= {alias.name for alias in names if private.fullmatch(alias.name)}
            case ast.Constant(value=str(text)) if private.fullmatch(text):
                ours.add(text)  # __slots__
    return used - ours


MEASURES: dict[str, tuple[int, Callable[[], Any]]] = {
    "lines of Python": (51_461, lambda: count_lines(PACKAGE.rglob("*.py"))),
    "files": (264, lambda: len(trees())),
    "classes": (540, lambda: sum(class_names().values())),
    "lines of C": (6_501, lambda: count_lines(PACKAGE.rglob("*.[ch]"))),
    "lines of tests": (48_278, lambda: count_lines((ROOT / "tests").rglob("*.py"))),
    "files under 60 lines": (
        32,
        lambda: sum(
            len(path.read_text().splitlines()) < SMALL_FILE_LINES for path in trees() if path.stem != "__init__"
        ),
    ),
    "class names used twice": (21, lambda: sum(count > 1 for count in class_names().values())),
    "public names": (50, lambda: len(streamrec.__all__)),
    "numeric constants": (358, lambda: len(numeric_constants())),
    "private names of other libraries": (28, lambda: len(foreign_private_names())),
}
"""Each number's ceiling, and how it is counted."""


@pytest.mark.parametrize("name", MEASURES)
def test_ceiling(name: str) -> None:
    ceiling, measure = MEASURES[name]
    assert measure() <= ceiling, f"{name}: the ceiling is {ceiling}"


def folder_cycles() -> list[set[str]]:
    """Groups of folders each of which imports, in one or several steps, every other one of its group."""
    graph: dict[str, set[str]] = {}
    for path, node in nodes():
        if path.stem == "__init__":  # a package gives names of what is below it, and that is not a cycle
            continue
        targets = graph.setdefault(folder_of(".".join(path.relative_to(ROOT).with_suffix("").parts)), set())
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("streamrec"):
            targets.update(folder_of(f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            targets.update(folder_of(alias.name) for alias in node.names if alias.name.startswith("streamrec."))
    reached = {folder: reachable(graph, folder) for folder in graph}
    groups = {
        frozenset(other for other in reached[folder] if folder in reached.get(other, ())) | {folder} for folder in graph
    }
    return [set(group) for group in groups if len(group) > 1]


def folder_of(name: str) -> str:
    """The folder that holds the module of a dotted name. A module at the top of the package counts as a folder."""
    parts = name.split(".")
    while parts:
        path = ROOT.joinpath(*parts)
        if path.with_suffix(".py").is_file():
            return ".".join(parts[:-1] if len(parts) > 2 else parts)
        if (path / "__init__.py").is_file():
            return ".".join(parts)
        parts.pop()
    raise AssertionError(name)


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """All that can be reached from a folder."""
    seen: set[str] = set()
    left = list(graph.get(start, ()))
    while left:
        folder = left.pop()
        if folder not in seen:
            seen.add(folder)
            left += graph.get(folder, ())
    return seen


def test_no_cycle_between_folders() -> None:
    assert folder_cycles() == []
