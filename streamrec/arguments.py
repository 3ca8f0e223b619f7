"""Checks of arguments: a TypeError or ValueError of the call names the argument, what came and what is wanted.

Numbers of NumPy are numbers; a bool is none. What is returned is Python's own kind.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar, overload

import numpy as np

from streamrec.display import mask_secrets, mask_values, shorten

__all__ = [
    "check_spans",
    "choice",
    "describe_value",
    "flag",
    "function",
    "integer",
    "mapping",
    "name_type",
    "number",
    "refusal",
    "with_article",
]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def describe_value(value: object, *, secret: bool = False) -> str:
    """What came, for a message: its value where that is short, and its type.

    Args:
        value: What came.
        secret: Whether strings in it may be secrets: they are masked, but for very short ones.
    """
    text = mask_secrets(repr(value))
    if secret:
        plain = isinstance(value, str | bytes | int | list | tuple | Mapping)
        text = mask_values(text, value) if plain else "something"
    return f"{shorten(text, 60)} ({type(value).__name__})"


def with_article(name: str) -> str:
    """The name of a type or thing after "a" or "an".

    >>> with_article("int"), with_article("str"), with_article("uint8"), with_article("ndarray")
    ('an int', 'a str', 'a uint8', 'an ndarray')
    """
    return f"{'an' if name[:1].lower() in tuple('aeio') or name.startswith('ndarray') else 'a'} {name}"


def name_type(value: object) -> str:
    """The type of what came, for a message; None is not a type.

    >>> name_type(1), name_type("x"), name_type(None)
    ('an int', 'a str', 'None')
    """
    return "None" if value is None else with_article(type(value).__name__)


def check_spans(spans: Any, size: int) -> None:
    """Refuses spans, an array of shape `[..., 2]` or wider, that lead outside of a buffer of this many bytes."""
    starts, ends = spans[..., 0], spans[..., 1]
    if starts.size and (starts.min() < 0 or (ends < starts).any() or ends.max() > size):
        raise ValueError(f"a span leaves the buffer of {size:,} bytes or ends before it starts")


@overload
def integer(name: str, value: Any, least: int | None = None) -> int: ...
@overload
def integer(name: str, value: Any, least: int | None = None, *, none: bool) -> int | None: ...
def integer(name: str, value: Any, least: int | None = None, *, none: bool = False) -> int | None:
    """A whole number, as an int, or None where `none` allows it; `least=-1` allows AUTOTUNE."""
    if value is None and none:
        return None
    wanted = "a whole number" + ("" if least is None else f", {least} or more") + (", or None" if none else "")
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is {describe_value(value)}: it must be {wanted}")
    try:
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {describe_value(value)}: it must be {wanted}") from None
    if least is not None and found < least:
        raise ValueError(f"{name} is {found}: it must be {wanted}")
    return found


def number(name: str, value: Any, least: float | None = None) -> float:
    """A number, as a float; NaN is none."""
    wanted = "a number" + ("" if least is None else f", {least:g} or more")
    if isinstance(value, bool | np.bool_ | str | bytes):
        raise TypeError(f"{name} is {describe_value(value)}: it must be {wanted}")
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {describe_value(value)}: it must be {wanted}") from None
    if found != found or (least is not None and found < least):
        raise ValueError(f"{name} is {found}: it must be {wanted}")
    return found


def flag(name: str, value: Any) -> bool:
    """True or False, of Python or NumPy."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is {describe_value(value)}: it must be True or False")
    return bool(value)


def function(name: str, value: F) -> F:
    """What can be called, as it is."""
    if not callable(value):
        raise TypeError(f"{name} is {describe_value(value)}: it must be a function")
    return value


def choice(name: str, value: object, allowed: Iterable[T]) -> T:
    """One of a few values."""
    known = list(allowed)
    for each in known:
        if value == each:
            return each
    raise ValueError(f"{name} is {describe_value(value)}: it must be one of {', '.join(map(repr, known))}")


def refusal(advice: str) -> Callable[..., NoReturn]:
    """A special method that a class lacks, and that is called by mistake: a TypeError that says what to write."""

    def refuse(*_: object) -> NoReturn:
        raise TypeError(advice)

    return refuse


def mapping(name: str, value: Any, of_what: str) -> Mapping[Any, Any]:
    """A dict, or another mapping."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {describe_value(value)}: it must be a dict of {of_what}")
    return value
