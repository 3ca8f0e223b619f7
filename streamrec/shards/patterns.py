"""Patterns that name shards: braces and globs, pure until the one listing.

- `train-{00000..00127}.tfrecord`, `{train,test}.tfrecord`: braces as in a shell.
- `train.tfrecord@8`: Google's notation for `train.tfrecord-00000-of-00008` and the seven others.
- `gs://bucket/train-*.tfrecord`: a glob (`storage/urls.py`), answered by one listing.
- An object with exactly the given name wins over the names that its braces, wildcards
  and `@` stand for.
- A glob's matches come sorted by name; the names of a list keep its order. So the same call always
  gives the same order.
- `train-{shard:05d}.tfrecord` names a writer's shards; `{shards}` is their number, if that is known
  before. `{time}` and `{uuid}` are when the writer was made and a name that no other writer has. A
  writer replaces no other braces.
- A web URL is never a glob: `?` and `[` are part of it, and web servers cannot list. Braces are
  never part of it.
"""

from __future__ import annotations

import glob
import re
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Final

from streamrec.display import display_name
from streamrec.lazy import lazy_pattern
from streamrec.storage import MAGIC, Glob, ObjectInfo, Storages, split_chain

BRACES = lazy_pattern(r"(?<!\[)\{([^{}]*)\}")
RANGE = lazy_pattern(r"(-?\d+)\.\.(-?\d+)")
NUMBER = lazy_pattern(r"\{shard(?::([^{}]*))?\}")
TOTAL = lazy_pattern(r"\{shards(?::([^{}]*))?\}")
RUN = lazy_pattern(r"\{(?:time(?::([^{}]*))?|uuid)\}")
TIME_FORMAT = "%Y%m%dT%H%M%SZ"
SHARDED = lazy_pattern(r"(.*[^/@])@([0-9]{1,7})((?:\.\w+)*)(?<!\.json)(?<!\.index)", re.DOTALL)
MAX_SHARDED = 1_000_000
WEB = lazy_pattern(r"https?://", re.IGNORECASE)

MANIFESTS: Final = (".json", ".index")
"""The endings of the names of manifests and indexes."""

SPECIAL: Final = re.compile(r"[*?\[{]|@[0-9]|\.json|\.index")
"""What every pattern holds, and every name of a manifest or an index."""


def expand_braces(pattern: str) -> Iterator[str]:
    """All names that the braces of a pattern stand for, in order.

    Braces without `..` or `,` stay as they are.

    `[{]` stands for a literal brace, as in a glob.

    Examples:
        >>> list(expand_braces("{a,b}-{08..10}"))
        ['a-08', 'a-09', 'a-10', 'b-08', 'b-09', 'b-10']
    """
    for braces in BRACES.finditer(pattern):
        choices = list(brace_choices(braces[1]))
        if choices:
            head = pattern[: braces.start()]
            tails = list(expand_braces(pattern[braces.end() :]))
            yield from (head + choice + tail for choice in choices for tail in tails)
            return
    yield pattern


def brace_choices(inside: str) -> Iterator[str]:
    """The texts that one pair of braces stands for; none if it is neither a choice nor a range."""
    numbers = RANGE.fullmatch(inside)
    if numbers:
        first = int(numbers[1])
        last = int(numbers[2])
        padded = any(
            len(text.lstrip("-")) > 1 and text.lstrip("-").startswith("0")
            for text in numbers.groups()
        )
        width = max(map(len, numbers.groups())) if padded else 0
        step = 1 if last >= first else -1
        for number in range(first, last + step, step):
            yield f"{number:0{width}d}"
    elif "," in inside:
        yield from inside.split(",")


def has_braces(name: str) -> bool:
    """Whether a name has braces that stand for several names."""
    return any(any(brace_choices(found[1])) for found in BRACES.finditer(name))


def is_sharded(name: str) -> bool:
    """Whether a name is in Google's notation of sharded files, NAME@8 or NAME@8.gz.

    A glob is not, nor is the name of a manifest or an index.

    Examples:
        >>> [is_sharded(name) for name in ("s3://b/x@8", "s3://b@8", "x@0", "x@8.json")]
        [True, False, False, False]
    """
    return "@" in name and any(True for _ in expand_sharded(name))


def expand_sharded(name: str) -> Iterator[str]:
    """The names that NAME@8 stands for; none if a name is not in this notation.

    Examples:
        >>> list(expand_sharded("d/x.tfrecord@2.gz"))
        ['d/x.tfrecord-00000-of-00002.gz', 'd/x.tfrecord-00001-of-00002.gz']
    """
    before, url, after = split_chain(name)
    found = None if MAGIC.search(url) else SHARDED.fullmatch(url)
    scheme, colon, rest = url.partition("://")
    is_bucket = bool(colon) and "/" not in scheme and "/" not in rest  # s3://name@8 has no key
    if found is None or is_bucket or not 0 < int(found[2]) <= MAX_SHARDED:
        return
    total = int(found[2])
    width = max(5, len(found[2]))
    for number in range(total):
        numbers = f"{number:0{width}d}-of-{total:0{width}d}"
        yield f"{before}{found[1]}-{numbers}{found[3]}{after}"


def is_glob(name: str) -> bool:
    """Whether a name needs a listing."""
    return bool(MAGIC.search(name) and MAGIC.search(split_chain(name).url)) and not is_web(name)


def is_web(name: str) -> bool:
    """Whether a name is the URL of a web server, also within a chain of fsspec."""
    return WEB.match(split_chain(name).url) is not None


def is_web_glob(name: str) -> bool:
    """Whether a name is the URL of a web server with `*` in its path.

    It may be meant as a pattern.
    """
    return "*" in name.partition("?")[0] and is_web(name)


def is_numbered(pattern: str) -> bool:
    """Whether a writer's pattern has a place for the shard's number.

    That is `{shard}`, or with a format, `{shard:05d}`.
    """
    return NUMBER.search(pattern) is not None


def fill_total(pattern: str, shards: int | None) -> str:
    """A writer's pattern with the number of its shards in place of `{shards}`.

    A ValueError if it is needed and None.

    Examples:
        >>> fill_total("train-{shard:03d}-of-{shards:03d}", 8), fill_total("train-{shard}", None)
        ('train-{shard:03d}-of-008', 'train-{shard}')
    """
    if shards is None and TOTAL.search(pattern):
        raise ValueError(
            f"{display_name(pattern)!r}: {{shards}}, the number of all shards, is not known "
            "before they are written: leave it out; or pass their number: "
            "Dataset.write(num_shards=), or streamrec reshard --shards"
        )
    return _fill(TOTAL, pattern, shards or 0)


def has_own_names(pattern: str) -> bool:
    """Whether each writer of this pattern has names of its own, by `{time}` or `{uuid}`."""
    return RUN.search(pattern) is not None


def fill_run(pattern: str, made: datetime, unique: str) -> str:
    """A writer's pattern with the time it was made for `{time}`, and `unique` for `{uuid}`.

    `{time}` takes a format of `datetime.strftime`, as in `{time:%Y/%m/%d}`.

    Examples:
        >>> made = datetime.fromisoformat("2026-11-27T08:30")
        >>> fill_run("{time:%Y-%m-%d}/events-{time}-{uuid}-{shard}", made, "0a1b")
        '2026-11-27/events-20261127T083000Z-0a1b-{shard}'
    """

    def filled(field: re.Match[str]) -> str:
        if field[0] == "{uuid}":
            return unique
        return made.strftime(field[1] or TIME_FORMAT)

    return RUN.sub(filled, pattern)


def shard_path(pattern: str, number: int) -> str:
    """The URL of a writer's shard. All other braces stay as they are.

    Examples:
        >>> shard_path("{a}-{shard:03d}", 7), shard_path("{a}", 7)
        ('{a}-007', '{a}')
    """
    return _fill(NUMBER, pattern, number)


def _fill(field: re.Pattern[str], pattern: str, number: int) -> str:
    try:
        return field.sub(lambda match: format(number, match[1] or ""), pattern)
    except ValueError as error:
        raise ValueError(
            f"{pattern!r}: this is not a format of a number ({error}): write {{shard:05d}}"
        ) from error


def is_shard_of(path: str, pattern: str) -> bool:
    """Whether a URL is one that a writer of this pattern could have given to a shard.

    Examples:
        >>> [is_shard_of(path, "d/train-{shard:03d}") for path in ("d/train-007", "d/train-x")]
        [True, False]
    """
    parts = NUMBER.split(pattern)  # a text, a format, a text, ...
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = [
        "[0-9a-fA-F]+" if (spec or "").endswith(("x", "X")) else "[0-9]+" for spec in parts[1::2]
    ]
    return re.fullmatch("".join(parts), path) is not None


async def list_numbered(storages: Storages, pattern: str) -> AsyncIterator[ObjectInfo]:
    """The listed objects that could be shards of a writer's pattern.

    Nothing, if it has no `{shard}`.
    """
    if is_numbered(pattern):
        before, url, after = split_chain(pattern)
        texts = NUMBER.split(url)[::2]
        wildcard = Glob(before + "*".join(map(glob.escape, texts)) + after)
        async for info in (await storages.at(pattern)).list(before + texts[0] + after, wildcard):
            if is_shard_of(info.path, pattern):
                yield info


def is_pattern(name: str) -> bool:
    """Whether a name stands for several: by braces, wildcards, or a number of shards, `@8`."""
    return has_braces(name) or is_glob(name) or is_web_glob(name) or is_sharded(name)


def is_manifest(name: str) -> bool:
    """Whether a name is that of a manifest or an index, and not a pattern."""
    url = split_chain(name).url
    if is_web(name):
        url = url.partition("?")[0]
    return url.endswith(MANIFESTS) and not is_glob(name)
