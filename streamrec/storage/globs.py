"""Globs: which objects a pattern matches, and which directories can hold one. Pure.

- `*` and `?` stay within a directory, `**` does not. `[ab]`, `[a-c]` and `[!ab]` are sets; none of them holds `/`.
- `[*]`, `[?]` and `[[]` stand for these characters themselves, as `glob.escape` writes them.
- In a chain (`zip://train-*::s3://bucket/c.zip`) the URL that has the path is the pattern.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Final

from streamrec.storage.backends.chained_urls import split_chain

__all__ = ["MAGIC", "Glob"]

MAGIC: Final = re.compile(r"[*?[]")

_TOKEN: Final = re.compile(r"(?<![^/])\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]/]*\]|.", re.DOTALL)
_WILDCARDS: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class Glob:
    """A pattern over whole URLs.

    Args:
        pattern: A URL or path with wildcards.

    Attributes:
        pattern: The same.
        prefix: What every match begins with: the pattern before its first wildcard, in its chain.

    Examples:
        >>> glob = Glob("s3://b/*/x-?.rec")
        >>> glob.matches("s3://b/d/x-1.rec"), glob.enters("s3://b/d/"), glob.enters("s3://b/d/e/")
        (True, True, False)
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._before, self._url, self._after = split_chain(pattern)
        self.prefix = self._before + MAGIC.split(self._url, maxsplit=1)[0] + self._after
        self._whole = _compile(self._url)
        directories = self._url.split("/")[:-1]
        self._deep = "**" in self._url
        level = next((level for level, name in enumerate(directories) if "**" in name), len(directories))
        self._directories = [_compile(name) for name in directories[:level]]

    def matches(self, url: str) -> bool:
        """Whether the pattern matches an object's URL."""
        return self._whole.fullmatch(self._inner(url)) is not None

    def wants(self, url: str) -> bool:
        """Whether a listing is to report an object: it matches, or has the pattern itself for a name."""
        return url == self.pattern or self.matches(url)

    def enters(self, directory: str) -> bool:
        """Whether a directory, whose URL ends with a slash, can hold an object that `wants` is true for."""
        inner = self._inner(directory)
        names = inner.split("/")[:-1]
        fits = all(regex.fullmatch(name) for regex, name in zip(self._directories, names, strict=False))
        return (fits and (self._deep or len(names) <= len(self._directories))) or self._url.startswith(inner)

    def _inner(self, url: str) -> str:
        """A URL without its chain."""
        return url.removeprefix(self._before).removesuffix(self._after)


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile("".join(map(_expression, _TOKEN.findall(pattern))), re.DOTALL)


def _expression(token: str) -> str:
    """A regular expression for a wildcard, a set or a character."""
    if token in _WILDCARDS:
        return _WILDCARDS[token]
    if len(token) == 1:
        return re.escape(token)
    members = f"[!{token[2:]}" if token[1] == "^" else token
    return "(?!/)" + fnmatch.translate(members)[4:-3]  # without the "(?s:" and the end that it puts around the set
