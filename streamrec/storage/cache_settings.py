"""Settings of the cache: two keys of `storage_options`, or two environment variables.

They are keys of `storage_options` so that everything that reads URLs takes them, and the clients
of stores never see them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from streamrec.arguments import describe_value

SEGMENT_BYTES: Final = 8 << 20
"""A file of the cache holds at most this many bytes, and none that lie on both sides of a multiple
of it. It is what ranks that want the same bytes wait for."""

UNWRITTEN_BYTES: Final = 64 << 20
"""How many bytes of a run may wait to be written, if its budget is large."""

UNWRITTEN_SHARE: Final = 8
"""They may take one of so many parts of a run's memory budget."""

DIRECTORY: Final = "cache_dir"
LIMIT: Final = "cache_bytes"

VARIABLES: Final = {DIRECTORY: "STREAMREC_CACHE_DIR", LIMIT: "STREAMREC_CACHE_BYTES"}

_UNITS: Final = {
    "": 1,
    "b": 1,
    **{
        f"{letter}{ending}": base**power
        for power, letter in enumerate("kmgtp", 1)
        for ending, base in (("", 1000), ("b", 1000), ("ib", 1024))
    },
}


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Where the cache is.

    Attributes:
        directory: Its directory, absolute.
        limit: How many bytes of the disk it may take.
    """

    directory: str
    limit: int


def parse_bytes(value: object, place: str) -> int:
    """Returns a number of bytes, given as an integer or as a text with a unit.

    >>> parse_bytes(1 << 30, "cache_bytes"), parse_bytes("1.5GB", "x"), parse_bytes("2 GiB", "x")
    (1073741824, 1500000000, 2147483648)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-zA-Z]*)\s*", str(value))
    unit = None if match is None else _UNITS.get(match[2].lower())
    if match is None or unit is None or isinstance(value, bool):
        raise ValueError(
            f"{place} is {describe_value(value)}: write a number of bytes, or a text such as "
            "'500GB' or '64GiB'"
        )
    return int(float(match[1]) * unit)


def find_settings(
    options: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> CacheSettings | None:
    """Returns the cache's settings, or None without a cache; options precede the environment.

    An empty directory turns the cache off. ValueError: the limit is missing or too small.
    """
    directory, place = _lookup(DIRECTORY, options, environment)
    if directory in (None, ""):
        return None
    if not isinstance(directory, str | os.PathLike):
        raise TypeError(
            f"{place} is {describe_value(directory)}: it must be the path of a directory"
        )
    value, limit_place = _lookup(LIMIT, options, environment)
    if value in (None, ""):
        raise ValueError(
            f"{place} is set and {limit_place} is not: say how many bytes the cache may take, such "
            "as '500GB'"
        )
    limit = parse_bytes(value, limit_place)
    if limit < SEGMENT_BYTES:
        raise ValueError(
            f"{limit_place} is {limit:,}: a cache holds at least one block of {SEGMENT_BYTES:,} "
            "bytes"
        )
    return CacheSettings(os.path.abspath(os.path.expanduser(directory)), limit)


def without_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options for the client of a store.

    >>> without_settings({"key": "x", "cache_dir": "/nvme", "cache_bytes": "1GB"})
    {'key': 'x'}
    """
    return {name: value for name, value in options.items() if name not in VARIABLES}


def _lookup(
    name: str, options: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[Any, str]:
    """Returns a setting, and where it stands for an error."""
    if name in options:
        return options[name], f"storage_options[{name!r}]"
    if VARIABLES[name] in environment:
        return environment[VARIABLES[name]], VARIABLES[name]
    return None, name
