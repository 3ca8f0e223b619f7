"""The C module, its stub and the package: the same functions with the same parameters."""

import ast
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import streamrec.kernels
from streamrec.kernels import _native

STUB = Path(streamrec.kernels.__file__).with_name("_native.pyi")
EXAMPLE_ROOM = ("decode_", "encode_examples")
"""What belongs to streamrec.example: wrapped there."""


def functions_of(module: ModuleType) -> set[str]:
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isroutine(value) and value.__module__ == module.__name__
    }


def stubs() -> dict[str, list[tuple[str, str | None]]]:
    found = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.posonlyargs + node.args.args]
            values = [ast.unparse(value) for value in node.args.defaults]
            required = len(names) - len(values)
            found[node.name] = [(name, values[i - required] if i >= required else None) for i, name in enumerate(names)]
    return found


def parameters(function: object) -> list[tuple[str, str | None]]:
    assert callable(function)
    return [
        (each.name, None if each.default is each.empty else repr(each.default))
        for each in inspect.signature(function).parameters.values()
    ]


def test_the_stub_names_the_native_functions() -> None:
    assert set(stubs()) == functions_of(_native)


@pytest.mark.parametrize("name", sorted(name for name in stubs() if not name.startswith(EXAMPLE_ROOM)))
def test_the_same_parameters_everywhere(name: str) -> None:
    assert parameters(getattr(_native, name)) == stubs()[name]
    assert getattr(streamrec.kernels, name) is getattr(_native, name)
