"""Lazy packages (PEP 562) and lazy patterns.

A name is imported, and a regular expression compiled, when it is first used. So a program loads
only the modules that it uses, and compiles only the patterns that it asks.

A package's `__init__.pyi` is the only list of its names, for type checkers and for `lazy_names`. It
contains imports (`from streamrec.x import A, B`) and `__all__`.
"""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, AnyStr, cast

__all__ = ["IMPORT", "lazy_names", "lazy_pattern"]

IMPORT = re.compile(r"^from (\S+) import (\([^)]*\)|.*)", re.MULTILINE)
"""An import in a stub; the groups are the module and its names."""


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package.

    The modules that its stub imports are names, too.
    """
    namespace = vars(sys.modules[package])
    stub = namespace["__spec__"].loader.get_data(f"{namespace['__file__']}i").decode()
    modules = set[str]()
    module_of: dict[str, str] = {}
    for module, names in IMPORT.findall(stub):
        if module == package:
            modules.add(f"{package}.{names.split()[0]}")
        else:
            modules.add(module)
            module_of.update(dict.fromkeys(re.findall(r"\w+", names), module))

    def import_name(name: str) -> Any:
        if f"{package}.{name}" in modules:
            return import_module(f"{package}.{name}")
        if name not in module_of:
            advice = f": write `import {package}.{name}`" if find_spec(f"{package}.{name}") else ""
            # With `name` and `obj`, Python itself proposes the most similar name.
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}{advice}",
                name=name,
                obj=sys.modules[package],
            )
        value = namespace[name] = getattr(import_module(module_of[name]), name)
        return value

    # A package within ours shows no modules in `dir`: one that was imported may be internal.
    public = set(module_of)
    if "." not in package:
        public.update(module.removeprefix(f"{package}.") for module in module_of.values())
    return import_name, lambda: sorted(public), list(module_of)


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """`re.compile`, when the pattern is first used.

    Compiling took a fifth of what a process executes until its first batch, nearly all of it for
    messages that it never writes. A pattern that every read asks is compiled by `re.compile`.

    Examples:
        >>> words = lazy_pattern("[a-z]+")
        >>> words.findall("one, two")
        ['one', 'two']
    """
    return cast("re.Pattern[AnyStr]", _LazyPattern(pattern, flags))


class _LazyPattern:
    """Has the attributes of a compiled pattern, and looks each of them up once."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        """Called for a name that the object does not have yet."""
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(re.compile(self._pattern, self._flags), name)
        setattr(self, name, found)
        return found
