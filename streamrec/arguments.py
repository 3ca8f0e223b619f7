"""Argument checks: errors name the argument, its value and what is allowed.

NumPy's numbers are accepted as numbers; bools are not. The checks return Python's own types.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, NoReturn, TypeVar, overload

import numpy as np

from streamrec.display import mask_secrets, mask_values, shorten

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def describe_value(value: object, *, secret: bool = False) -> str:
    """Describes an argument in a message: its value, shortened, and its type.

    Strings of four letters or more that may be secrets are masked.
    """
    text = mask_secrets(repr(value))
    if secret:
        plain = isinstance(value, str | bytes | int | list | tuple | Mapping)
        text = mask_values(text, value) if plain else "something"
    return f"{shorten(text, 60)} ({type(value).__name__})"


def add_article(name: str) -> str:
    """Puts "a" or "an" before a name.

    >>> add_article("int"), add_article("str"), add_article("uint8"), add_article("ndarray")
    ('an int', 'a str', 'a uint8', 'an ndarray')
    """
    return (
        f"{'an' if name[:1].lower() in tuple('aeio') or name.startswith('ndarray') else 'a'} {name}"
    )


def name_type(value: object) -> str:
    """Names the type of a value in a message; None stays None.

    >>> name_type(1), name_type("x"), name_type(None)
    ('an int', 'a str', 'None')
    """
    return "None" if value is None else add_article(type(value).__name__)


def check_overwrite(value: object) -> bool | Literal["unsecured"]:
    """Checks whether existing objects may be replaced: a bool, or "unsecured".

    >>> check_overwrite("unsecured"), check_overwrite(False)
    ('unsecured', False)
    """
    if isinstance(value, str) and value == "unsecured":
        return "unsecured"
    if isinstance(value, str):
        raise ValueError(
            f"overwrite is {describe_value(value)}: it must be True, False, or 'unsecured' to "
            "replace objects that this client may not read, too"
        )
    return check_flag("overwrite", value)


def check_spans(spans: Any, size: int) -> None:
    """Checks that spans stay within a buffer of `size` bytes.

    They are an array of shape `[..., 2]` or wider.
    """
    starts = spans[..., 0]
    ends = spans[..., 1]
    if starts.size and (starts.min() < 0 or (ends < starts).any() or ends.max() > size):
        raise ValueError(f"a span leaves the buffer of {size:,} bytes or ends before it starts")


@overload
def check_integer(name: str, value: Any, least: int | None = None) -> int: ...
@overload
def check_integer(name: str, value: Any, least: int | None = None, *, none: bool) -> int | None: ...
def check_integer(
    name: str, value: Any, least: int | None = None, *, none: bool = False
) -> int | None:
    """Returns a whole number as an int, or None where `none` allows it.

    `least=-1` allows AUTOTUNE.
    """
    if value is None and none:
        return None
    wanted = (
        "a whole number"
        + ("" if least is None else f", {least} or more")
        + (", or None" if none else "")
    )
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is {describe_value(value)}: it must be {wanted}")
    try:
        result = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {describe_value(value)}: it must be {wanted}") from None
    if least is not None and result < least:
        raise ValueError(f"{name} is {result}: it must be {wanted}")
    return result


def check_number(name: str, value: Any, least: float | None = None) -> float:
    """Returns a number as a float; refuses NaN."""
    wanted = "a number" + ("" if least is None else f", {least:g} or more")
    if isinstance(value, bool | np.bool_ | str | bytes):
        raise TypeError(f"{name} is {describe_value(value)}: it must be {wanted}")
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {describe_value(value)}: it must be {wanted}") from None
    if result != result or (least is not None and result < least):
        raise ValueError(f"{name} is {result}: it must be {wanted}")
    return result


def check_flag(name: str, value: Any) -> bool:
    """Returns True or False, of Python or NumPy, as a bool."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is {describe_value(value)}: it must be True or False")
    return bool(value)


def check_function(name: str, value: F) -> F:
    """Returns a callable as it is."""
    if not callable(value):
        raise TypeError(f"{name} is {describe_value(value)}: it must be a function")
    return value


def check_choice(name: str, value: object, allowed: Iterable[T]) -> T:
    """Returns the allowed value that equals `value`."""
    choices = list(allowed)
    if value in choices:
        return choices[choices.index(value)]
    raise ValueError(
        f"{name} is {describe_value(value)}: it must be one of {', '.join(map(repr, choices))}"
    )


at_least_one = partial(check_integer, least=1)
"""Checks a size: a whole number, 1 or more."""


def whole_or_all(name: str, value: Any) -> int:
    """Checks a number of elements: negative ones mean all, and become -1, as in tf.data."""
    return max(-1, check_integer(name, value))


Check = Callable[[str, Any], Any]
"""A check of an argument: it takes the name and the value, and returns the value to use."""


def check_fields(description: object, **checks: Check) -> None:
    """Checks fields of a frozen description, in its `__post_init__`, and keeps what checks return.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Every:
    ...     count: int
    ...     reverse: bool = False
    ...
    ...     def __post_init__(self) -> None:
    ...         check_fields(self, count=at_least_one, reverse=check_flag)
    >>> Every(np.int64(3))
    Every(count=3, reverse=False)
    >>> Every(0)
    Traceback (most recent call last):
    ValueError: count is 0: it must be a whole number, 1 or more
    """
    for name, check in checks.items():
        object.__setattr__(description, name, check(name, getattr(description, name)))


def check_named(argument: str, check: Check) -> Check:
    """A check of a field whose argument has another name."""
    return lambda _, value: check(argument, value)


def check_each(check: Check) -> Check:
    """A check of all values of a sequence, which becomes a tuple."""
    return lambda name, values: tuple(check(name, value) for value in values)


def refuse_with(advice: str) -> Callable[..., NoReturn]:
    """Returns a special method that raises a TypeError with advice.

    It is for a class that does not support the operation.
    """

    def refuse(*_: object) -> NoReturn:
        raise TypeError(advice)

    return refuse


def check_path(name: str, value: Any) -> str:
    """Returns a URL or path as a str."""
    if not isinstance(value, str | bytes | os.PathLike):
        raise TypeError(f"{name} is {describe_value(value)}: it must be a URL or path")
    return os.fsdecode(value)


def check_mapping(name: str, value: Any, of_what: str) -> Mapping[Any, Any]:
    """Returns a dict, or another mapping, as it is."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {describe_value(value)}: it must be a dict of {of_what}")
    return value
