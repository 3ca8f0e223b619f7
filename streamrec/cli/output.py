"""What is printed on standard output: lines for people, JSON for scripts, sizes in words. `rendering.py` has tables."""

from __future__ import annotations

import json
from typing import Any

import click

from streamrec.display import display_text, escape, escape_json, mask_secrets

__all__ = [
    "format_bytes",
    "format_number",
    "plural",
    "print_error",
    "print_json",
    "print_line",
    "print_record",
]

UNITS = ("kB", "MB", "GB", "TB", "PB")


def print_json(value: Any, *, data: bool = False) -> None:
    """Prints one line of JSON, in which a terminal finds nothing to obey.

    Args:
        value: What is printed.
        data: Whether strings are values of records, which are printed as they are. In all others secrets are masked.
    """
    print(escape_json(json.dumps(value if data else masked(value), ensure_ascii=False)))


def masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: masked(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return mask_secrets(value) if isinstance(value, str) else value


def print_line(*lines: str) -> None:
    """Prints lines about names and stores: secrets are masked, and what a terminal would obey is escaped."""
    for line in lines:
        print(display_text(line))


def print_record(*lines: str) -> None:
    """Prints lines of values of records, in which what a terminal would obey is escaped."""
    for line in lines:
        print(escape(line))


def print_error(text: object) -> None:
    """Prints a line on standard error."""
    click.echo(f"streamrec: {display_text(str(text))}", err=True)


def format_bytes(count: int | None) -> str:
    """A number of bytes, short.

    Examples:
        >>> format_bytes(999), format_bytes(1_536_000), format_bytes(None)
        ('999 B', '1.54 MB', '?')
    """
    if count is None:
        return "?"
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in UNITS:
        size /= 1000
        if size < 999.5 or unit == UNITS[-1]:
            break
    return f"{size:.3g} {unit}"


def plural(number: int, thing: str) -> str:
    """A number of things.

    Examples:
        >>> plural(1, "shard"), plural(2000, "shard")
        ('1 shard', '2,000 shards')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def format_number(value: float | int | None) -> str:
    """A number, short; integers in full up to a million million.

    Examples:
        >>> format_number(1234567), format_number(0.123456), format_number(None)
        ('1,234,567', '0.1235', '')
    """
    if value is None:
        return ""
    if isinstance(value, int) and abs(value) < 10**12:
        return f"{value:,}"
    return f"{value:.4g}"
