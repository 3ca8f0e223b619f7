"""What is printed on standard output: lines for people, JSON for scripts, sizes in words. `rendering.py` has tables."""

from __future__ import annotations

import json
from typing import Any

from streamrec.errors import without_passwords

__all__ = ["escaped", "format_bytes", "format_number", "plural", "print_json", "print_line"]

UNITS = ("kB", "MB", "GB", "TB", "PB")


def print_json(value: Any) -> None:
    """Prints one line of JSON."""
    print(json.dumps(value, ensure_ascii=False))


def print_line(text: str) -> None:
    """Prints a line as it is; what cannot be shown, as control characters from the data, is escaped."""
    print(escaped(text))


def escaped(text: str) -> str:
    r"""The text with all that a terminal would not show, or would obey, written as Python writes it. No passwords.

    Examples:
        >>> escaped("naïve\x1b[31m")
        'naïve\\x1b[31m'
    """
    text = without_passwords(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


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
