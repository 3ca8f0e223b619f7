"""The package stays small enough for one person to carry.

The ceilings leave room for a small feature. A change that exceeds one removes something else; a
commit that raises one says why. A number is a means: do not meet one by longer lines, denser code
or fewer docstrings of public names.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import streamrec

PACKAGE = Path(streamrec.__file__).parent
ROOT = PACKAGE.parent


@cache
def trees() -> Mapping[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def nodes() -> tuple[tuple[Path, ast.AST], ...]:
    return tuple((path, node) for path, tree in trees().items() for node in ast.walk(tree))


@cache
def imports(path: Path) -> list[str]:
    """The dotted names that a file imports."""
    found = []
    for node in ast.walk(trees().get(path) or ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def count_lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def class_names() -> Counter[str]:
    return Counter(node.name for _, node in nodes() if isinstance(node, ast.ClassDef))


def numeric_constants() -> list[str]:
    """Constants of modules and classes that are numbers, or computed from number literals alone."""
    found = []
    for path, node in nodes():
        for statement in node.body if isinstance(node, ast.Module | ast.ClassDef) else ():
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if isinstance(statement, ast.AnnAssign) and statement.value is not None:
                targets = [statement.target]
            names = [
                target.id
                for target in targets
                if isinstance(target, ast.Name) and target.id.isupper()
            ]
            if names and is_number(statement.value):  # type: ignore[attr-defined]
                found += [f"{path.relative_to(ROOT)}: {name}" for name in names]
    return found


def is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return type(value.value) in (int, float)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    return isinstance(value, ast.BinOp) and is_number(value.left) and is_number(value.right)


def count_phrases(pattern: str) -> int:
    """How often names, docstrings and messages of the package, the README and the pages have it."""
    texts = [page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))]
    texts += [str(node.value) for _, node in nodes() if isinstance(node, ast.Constant)]
    texts += [node.id for _, node in nodes() if isinstance(node, ast.Name)]
    return len(re.findall(pattern, "\n".join(texts), re.I))


def foreign_private_names() -> set[str]:
    """Private attributes that the package uses and does not define: they belong to other
    libraries.
    """
    private = re.compile(r"_[a-zA-Z]\w*")
    used, ours = set(), set()
    for _, node in nodes():
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
            ):
                ours.add(name)
            case (
                ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.alias(asname=str(name))
            ):
                ours.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                ours.add(name)
            case ast.Attribute(attr=name) if private.fullmatch(name):
                used.add(name)
            case ast.ImportFrom(module=str(module), names=names) if not module.startswith(
                "streamrec"
            ):
                used |= {alias.name for alias in names if private.fullmatch(alias.name)}
            case ast.Constant(value=str(text)) if private.fullmatch(text):
                ours.add(text)  # __slots__
    return used - ours


MEASURES: dict[str, tuple[int, Callable[[], Any]]] = {
    "lines of Python": (44_000, lambda: count_lines(PACKAGE.rglob("*.py"))),
    "files": (212, lambda: len(trees())),
    "classes": (471, lambda: sum(class_names().values())),
    "lines of C": (6_530, lambda: count_lines(PACKAGE.rglob("*.[ch]"))),
    "lines of tests": (37_440, lambda: count_lines((ROOT / "tests").rglob("*.py"))),
    "files under 60 lines": (
        4,
        lambda: sum(count_lines([path]) < 60 for path in trees() if path.stem != "__init__"),
    ),
    "class names used twice": (4, lambda: sum(count > 1 for count in class_names().values())),
    "public names": (50, lambda: len(streamrec.__all__)),
    "numeric constants": (199, lambda: len(numeric_constants())),
    "private names of other libraries": (20, lambda: len(foreign_private_names())),
}
"""Each number's ceiling, and how it is counted."""

PHRASES = {
    r"\bbehind\b": 1,
    r"\banew\b": 0,
    r"\bat the (most|least)\b": 0,
    r"\b(no|some)body\b": 0,
    r"\b(is|are|was|were) no\b(?! longer| more)": 13,
    r"\b(for|of|to) who\b|\bwhoever\b": 0,
    r"\bbeside\b": 3,
    r"\bso (many|much)\b": 0,
    r"\b(?-i:LEAST|MOST)_": 0,
}
"""Phrases that turn a sentence round. Say it plainly: after, again, at most, no caller, is not an
X, users, next to."""
MEASURES |= {
    phrase: (ceiling, partial(count_phrases, phrase)) for phrase, ceiling in PHRASES.items()
}


@pytest.mark.parametrize("name", MEASURES)
def test_ceiling(name: str) -> None:
    ceiling, measure = MEASURES[name]
    assert measure() <= ceiling, f"{name}: the ceiling is {ceiling}"


def folder_of(name: str) -> str:
    """The folder that holds the module of a dotted name. A module at the top of the package counts
    as a folder.
    """
    parts = name.split(".")
    while parts:
        path = ROOT.joinpath(*parts)
        if path.with_suffix(".py").is_file():
            return ".".join(parts[:-1] if len(parts) > 2 else parts)
        if (path / "__init__.py").is_file():
            return ".".join(parts)
        parts.pop()
    raise AssertionError(name)


def test_no_cycle_between_folders() -> None:
    graph: dict[str, set[str]] = {}
    for path in trees():
        if (
            path.stem == "__init__"
        ):  # a package gives names of what is below it, and that is not a cycle
            continue
        folder = folder_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        targets = {folder_of(name) for name in imports(path) if name.startswith("streamrec.")}
        graph.setdefault(folder, set()).update(targets - {folder})
    TopologicalSorter(graph).prepare()  # its error names the folders of a cycle
