"""Packages that import a name when it is first asked for (PEP 562), so that a program loads what it uses and no more.

What the names are to a type checker stands in the package's `__init__.pyi`; a test compares the two.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, names_of: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: Its name.
        names_of: Its names, by the module they come from. The modules are imported when they are asked for too.
    """
    module_of = {name: module for module, names in names_of.items() for name in names}
    namespace = vars(sys.modules[package])

    def imported(name: str) -> Any:
        if name in names_of:
            return import_module(f"{package}.{name}")
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(import_module(f"{package}.{module_of[name]}"), name)
        return value

    return imported, lambda: sorted({*namespace, *module_of}), list(module_of)
