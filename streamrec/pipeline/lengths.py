"""`__len__` of objects whose length may be unknown.

torch and Keras ask `hasattr(dataset, "__len__")`, and take a `__len__` that raises for a fault. So
the attribute is absent where the length is unknown, and `len()` is a TypeError that says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., int])


class NoLengthError(AttributeError, TypeError):
    """The TypeError of `len()`, which is an AttributeError for `hasattr`."""


def absent_if_unknown(function: F) -> F:
    """Makes a `__len__` whose TypeError means that the object has no `__len__`."""
    return cast(F, LengthIfKnown(function))


class LengthIfKnown:
    """A `__len__` of a class, which looks the length up when the attribute is looked up."""

    def __init__(self, function: Callable[[Any], int]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self._function
        try:
            count = self._function(instance)
        except TypeError as error:
            raise NoLengthError(str(error)) from None
        return lambda: count
