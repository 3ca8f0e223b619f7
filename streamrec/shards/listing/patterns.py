"""Which shards a name means: lists, braces and globs, pure until the one listing.

- `train-{00000..00127}.tfrecord`, `{train,test}.tfrecord`: braces as in a shell, without asking the store.
- `gs://bucket/train-*.tfrecord`: a glob, answered by one listing; `*` and `?` stay within a directory, `**`
  does not, `[ab]` and `[!ab]` are sets.
- A glob's matches come sorted by name; what a list names keeps the list's order. The same call gives the same
  order wherever and whenever it runs.
- A web URL is never a glob: `?` and `[` are its own, and web servers cannot list.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from streamrec.arguments import described

__all__ = ["Filenames", "expand_braces", "glob_prefix", "glob_regex", "is_glob", "listed"]

Name = str | bytes | os.PathLike[str]
Filenames = Name | Iterable[Name]

BRACES = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
MAGIC = re.compile(r"[*?[]")
WEB = re.compile(r"https?://", re.IGNORECASE)


def listed(filenames: Filenames) -> list[str]:
    """The names that the caller gave, as strings, braces expanded, in order; globs still to be answered.

    A name may be bytes: the elements of `Dataset.list_files` are, as tf.data's.

    Raises:
        TypeError: They are no names; the message says what came.
    """
    names: list[Any] = [filenames]
    if isinstance(filenames, Iterable) and not isinstance(filenames, str | bytes):
        names = list(filenames)
    for name in names:
        if not isinstance(name, str | bytes | os.PathLike):
            raise TypeError(f"a file name is {described(name)}: give a URL or path, a pattern, or a list of them")
    return [name for pattern in names for name in expand_braces(os.fsdecode(pattern))]


def expand_braces(pattern: str) -> Iterator[str]:
    """All names that the braces of a pattern stand for, in order; braces without `..` or `,` stay as they are.

    Examples:
        >>> list(expand_braces("{a,b}-{08..10}"))
        ['a-08', 'a-09', 'a-10', 'b-08', 'b-09', 'b-10']
    """
    for found in BRACES.finditer(pattern):
        choices = list(brace_choices(found[1]))
        if choices:
            head, tail = pattern[: found.start()], pattern[found.end() :]
            rests = list(expand_braces(tail))
            for choice in choices:
                for rest in rests:
                    yield head + choice + rest
            return
    yield pattern


def brace_choices(inside: str) -> Iterator[str]:
    """What one pair of braces stands for; nothing where it is no choice and no range."""
    numbers = RANGE.fullmatch(inside)
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        padded = any(len(text.lstrip("-")) > 1 and text.lstrip("-").startswith("0") for text in numbers.groups())
        width = max(map(len, numbers.groups())) if padded else 0
        step = 1 if last >= first else -1
        for number in range(first, last + step, step):
            yield f"{number:0{width}d}"
    elif "," in inside:
        yield from inside.split(",")


def is_glob(name: str) -> bool:
    """Whether a name must be answered by a listing."""
    return bool(MAGIC.search(name)) and not WEB.match(name)


def glob_prefix(pattern: str) -> str:
    """What every match begins with: the part of the pattern before its first magic character."""
    return MAGIC.split(pattern, maxsplit=1)[0]


def glob_regex(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression over whole names.

    Examples:
        >>> bool(glob_regex("s3://b/*/x-?.rec").fullmatch("s3://b/d/x-1.rec"))
        True
    """
    parts = []
    position = 0
    while position < len(pattern):
        text, position = translate_at(pattern, position)
        parts.append(text)
    return re.compile("".join(parts), re.DOTALL)


def translate_at(pattern: str, position: int) -> tuple[str, int]:
    """The regular expression of the token at `position`, and where the next token starts."""
    char = pattern[position]
    if pattern.startswith("**/", position):
        return "(?:.*/)?", position + 3
    if pattern.startswith("**", position):
        return ".*", position + 2
    if char == "*":
        return "[^/]*", position + 1
    if char == "?":
        return "[^/]", position + 1
    if char == "[":
        end = pattern.find("]", position + 2)
        if end > 0:
            inside = pattern[position + 1 : end].replace("\\", r"\\")
            negated = inside[0] in "!^"
            return f"[{'^' if negated else ''}{inside[negated:]}]", end + 1
    return re.escape(char), position + 1
