"""The examples in the package's docstrings run, and give what they say."""

import doctest
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import streamrec

PACKAGE = Path(streamrec.__file__).parent
NEEDS = {"torch": "torch", "jax": "jax", "grain": "grain"}
"""The packages that a module of an adapter needs, which are no part of the usual environment."""

APART = {"jax", "grain"}
"""Those that are imported in a process of their own: with JAX in a process, each fork that a later test makes warns."""


def needs(name: str) -> str | None:
    return NEEDS.get(name.split(".")[1]) if "." in name else None


def modules_with_examples() -> list[str]:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text()]
    names = [".".join(("streamrec", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.peer] if needs(name) else []) for name in modules_with_examples()],
)
def test_examples_in_docstrings(name: str) -> None:
    package = needs(name)
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if package in APART:
        code = f"import doctest, {name} as module; failed, tried = doctest.testmod(module); assert tried and not failed"
        subprocess.run([sys.executable, "-c", code], check=True)
        return
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried, f"{name} has examples that doctest does not find"
    assert not failed
