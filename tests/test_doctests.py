"""The examples in the package's docstrings run, and give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

import streamrec

PACKAGE = Path(streamrec.__file__).parent
NEEDS_TORCH = {"streamrec.torch"}


def modules_with_examples() -> list[str]:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text()]
    names = [".".join(("streamrec", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.peer] if name in NEEDS_TORCH else []) for name in modules_with_examples()],
)
def test_examples_in_docstrings(name: str) -> None:
    if name in NEEDS_TORCH:
        pytest.importorskip("torch")
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried, f"{name} has examples that doctest does not find"
    assert not failed
