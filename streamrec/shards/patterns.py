"""Which shards a name means: lists, braces and globs, pure until the one listing.

- `train-{00000..00127}.tfrecord`, `{train,test}.tfrecord`: braces as in a shell.
- `gs://bucket/train-*.tfrecord`: a glob (`storage/urls.py`), answered by one listing.
- An object that has the very name wins over what braces and wildcards stand for.
- A glob's matches come sorted by name; what a list names keeps the list's order. The same call gives the same
  order wherever and whenever it runs.
- `train-{shard:05d}.tfrecord` names the shards that a writer makes; `{shards}` is how many there are, where that is
  known before. A writer replaces no other braces.
- A web URL is never a glob: `?` and `[` are its own, and web servers cannot list. Braces are never its own.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from streamrec.arguments import describe_value
from streamrec.display import display_name
from streamrec.storage import MAGIC, Glob, ObjectInfo, Storages, split_chain

__all__ = [
    "NUMBER",
    "Filenames",
    "expand_braces",
    "fill_total",
    "has_braces",
    "is_glob",
    "is_numbered",
    "is_shard_of",
    "is_web",
    "is_web_glob",
    "list_numbered",
    "shard_path",
    "to_names",
]

Name = str | bytes | os.PathLike[str]
Filenames = Name | Iterable[Name]

BRACES = re.compile(r"(?<!\[)\{([^{}]*)\}")
RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
NUMBER = re.compile(r"\{shard(?::([^{}]*))?\}")
TOTAL = re.compile(r"\{shards(?::([^{}]*))?\}")
WEB = re.compile(r"https?://", re.IGNORECASE)


def to_names(filenames: Filenames) -> list[str]:
    """The names that the caller gave, as strings, in order; braces and globs still to be answered.

    A name may be bytes: the elements of `Dataset.list_files` are, as tf.data's.

    Raises:
        TypeError: They are not names; the message says what was given.
    """
    names: list[Any] = [filenames]
    if isinstance(filenames, Iterable) and not isinstance(filenames, str | bytes):
        names = list(filenames)
    for name in names:
        if not isinstance(name, str | bytes | os.PathLike):
            raise TypeError(f"a file name is {describe_value(name)}: give a URL or path, a pattern, or a list of them")
        if not name:
            raise ValueError("a file name is '': give a URL or path, a pattern, or a list of them")
    return [os.fsdecode(name) for name in names]


def expand_braces(pattern: str) -> Iterator[str]:
    """All names that the braces of a pattern stand for, in order; braces without `..` or `,` stay as they are.

    `[{]` stands for a brace itself, as in a glob.

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
    """What one pair of braces stands for; nothing where it is neither a choice nor a range."""
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


def has_braces(name: str) -> bool:
    """Whether a name has braces that stand for several names."""
    return any(any(brace_choices(found[1])) for found in BRACES.finditer(name))


def is_glob(name: str) -> bool:
    """Whether a name must be answered by a listing."""
    return bool(MAGIC.search(split_chain(name).url)) and not is_web(name)


def is_web(name: str) -> bool:
    """Whether a name is the URL of a web server."""
    return WEB.match(split_chain(name).url) is not None


def is_web_glob(name: str) -> bool:
    """Whether a name is the URL of a web server with `*` in its path: it may be meant as a pattern."""
    return is_web(name) and "*" in name.partition("?")[0]


def is_numbered(pattern: str) -> bool:
    """Whether a writer's pattern has a place for the shard's number: `{shard}`, or with a format, `{shard:05d}`."""
    return NUMBER.search(pattern) is not None


def fill_total(pattern: str, shards: int | None) -> str:
    """A writer's pattern with the number of its shards in place of `{shards}`.

    Raises:
        ValueError: The pattern has it, and the number is None; or the format is none of a number.

    Examples:
        >>> fill_total("train-{shard:03d}-of-{shards:03d}", 8), fill_total("train-{shard}", None)
        ('train-{shard:03d}-of-008', 'train-{shard}')
    """
    if shards is None and TOTAL.search(pattern):
        raise ValueError(
            f"{display_name(pattern)!r}: {{shards}}, the number of all shards, is not known before they are written: "
            "leave it out; or say how many there are, in Dataset.write(num_shards=) or streamrec reshard --shards"
        )
    return _fill(TOTAL, pattern, shards or 0)


def shard_path(pattern: str, number: int) -> str:
    """The URL of a writer's shard. All other braces stay as they are.

    Raises:
        ValueError: The format is none of a number.

    Examples:
        >>> shard_path("{a}-{shard:03d}", 7), shard_path("{a}", 7)
        ('{a}-007', '{a}')
    """
    return _fill(NUMBER, pattern, number)


def _fill(field: re.Pattern[str], pattern: str, number: int) -> str:
    try:
        return field.sub(lambda found: format(number, found[1] or ""), pattern)
    except ValueError as error:
        raise ValueError(f"{pattern!r}: this is not a format of a number ({error}): write {{shard:05d}}") from error


def is_shard_of(path: str, pattern: str) -> bool:
    """Whether a URL is one that a writer of this pattern could have given to a shard.

    Examples:
        >>> is_shard_of("d/train-007", "d/train-{shard:03d}"), is_shard_of("d/train-x", "d/train-{shard:03d}")
        (True, False)
    """
    texts = NUMBER.split(pattern)  # a text, a format, a text, ...
    digits = ["[0-9a-fA-F]+" if (spec or "").endswith(("x", "X")) else "[0-9]+" for spec in texts[1::2]]
    return (
        re.fullmatch("".join(map("".join, zip(map(re.escape, texts[::2]), [*digits, ""], strict=True))), path)
        is not None
    )


async def list_numbered(storages: Storages, pattern: str) -> AsyncIterator[ObjectInfo]:
    """The objects that could be shards of a writer's pattern, as the store lists them; none without a `{shard}`."""
    if is_numbered(pattern):
        before, url, after = split_chain(pattern)
        texts = NUMBER.split(url)[::2]
        wildcard = Glob(before + "*".join(map(glob.escape, texts)) + after)
        async for info in (await storages.at(pattern)).list(before + texts[0] + after, wildcard):
            if is_shard_of(info.path, pattern):
                yield info
