"""Text for display: without secrets, and without control characters.

Names, data and responses of servers cannot be trusted. All output with them (errors, `repr`, logs,
the command line, HTML) goes through `display_text`. Files for programs go through `mask_secrets`
alone, and JSON through `escape_json`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import accumulate
from typing import Any, Final, TypeVar, cast

from streamrec.lazy import lazy_pattern
from streamrec.store_kinds import shows_login

__all__ = [
    "display_name",
    "display_repr",
    "display_text",
    "escape",
    "escape_json",
    "image_type",
    "join_names",
    "logger",
    "mask_cause",
    "mask_name",
    "mask_secrets",
    "mask_values",
    "secrets_in",
    "shorten",
    "text_of",
    "warn_once",
]

_IMAGES: Final = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png"}

_HARMLESS: Final = lazy_pattern(
    r"""(?ix) alt | boundary | charset | client-id | date | day | delimiter | dir | directory
    | download | dt | encoding | end | expires | file | filename | format | generation | hour | id
    | index | lang | length | limit | list-type | marker | max-keys | metageneration | month | name
    | num | offset | os | page | part | partnumber | path | prefix | project | range | raw | region
    | response-content-(disposition|type) | rev | revision | s[eprtv] | shard | size | split | spr
    | start | type | uploads | v | version | version-?id | versions
    | x-(amz|goog)-(algorithm|date|expires|signedheaders) | x-id | year"""
)
"""Names in queries whose values are not masked. Any other value could be a secret."""

SENSITIVE: Final = (
    r"(?:key|secret|token|passw|pass\b|pwd|sig\b|signature|credential|auth|jwt|\bcode\b|session"
    r"|\bsas\b|cookie|bearer)"
)
_SENSITIVE_NAME: Final = lazy_pattern(rf"(?i).*{SENSITIVE}")

INVISIBLE: Final = (
    "\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Characters that change a text, or hide one in it, without being seen: marks of direction, spaces
without width, fillers, tags, selectors of variants. The joiners U+200C and U+200D, soft hyphens and
the selectors of emoji are parts of ordinary words."""

_OTHER_UNSAFE: Final = rf"\x7f-\x9f{INVISIBLE}\ud800-\udfff"
_UNSAFE: Final = lazy_pattern(rf"[\x00-\x1f{_OTHER_UNSAFE}]")
_CONTROL: Final = lazy_pattern("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_UNSAFE_IN_LINES: Final = lazy_pattern(rf"[\x00-\x09\x0b-\x1f{_OTHER_UNSAFE}]")
_UNSAFE_IN_JSON: Final = lazy_pattern(f"[{_OTHER_UNSAFE}]")

_URL: Final = lazy_pattern(
    r"([A-Za-z][A-Za-z0-9+.-]*)://((?:[^\s\"'<>]|['\"<>](?=[^\s,)\]}>:;\"']))*)"
)
"""A URL in a text: up to a space, or to a quote at its end."""

_QUOTED_URL: Final = lazy_pattern(r"([\"'])([A-Za-z][A-Za-z0-9+.-]*://(?:\\.|(?!\1)[^\\\n])*)\1")
_CHAIN: Final = lazy_pattern(r"(::(?=[A-Za-z][A-Za-z0-9+.-]*(?:::|://)))")
_SEPARATORS: Final = lazy_pattern("[@?#;]")
"""A URL without any of these has no secret."""
_QUERY: Final = lazy_pattern(r"\?([\w.%~$+\[\]-]+=(?:[^\s\"'<>]|['\"<>](?=[\w%]))*)")
_HEADER: Final = lazy_pattern(
    r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]*(?:token|key|signature|secret|auth)[\w-]*)"
    r"(['\"]?\s*[:=]\s*['\"]?)((?:(?:bearer|basic|token|negotiate|digest) "
    r"+)?[^\s'\",]+(?:(?<=cookie)[^\n]*)?)"
)
_BEARER: Final = lazy_pattern(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}")
_CONNECTION: Final = lazy_pattern(
    r"(?i)\b(accountkey|sharedaccesskey|sharedaccesssignature|password|passwd|pwd|client_?secret|secret_?(?:access_?)?key)"
    r"=(?!\.\.\.)([^;\s'\"&]+)"
)
_NAMED: Final = lazy_pattern(
    r"(?i)(['\"]?)\b([\w-]*(?:password|passwd|pwd|secret|token|(?:api|access|account|private|shared)_?key"
    r"|signature|connection_?string|credential)[\w-]*)(\1\s*[:=]\s*)(['\"])(?!\.\.\.|[/~][^'\"]*\.json\4)((?:\\.|(?!\4).)+)\4"
)
_QUICK: Final = lazy_pattern(
    r"(?i)://|\?|key|secret|passw|pwd|token|auth|cookie|signature|bearer|connection|credential"
)

STARS: Final = "***"


def display_text(text: str, *, lines: bool = False) -> str:
    r"""Masks secrets and escapes control characters.

    The text may be a name, data, the response of a server, or a message with them. Line feeds are
    escaped only without `lines`.

    Examples:
        >>> display_text("https://host/a\x1b[2J?key=abc")
        'https://host/a\\x1b[2J?key=***'
    """
    return escape(mask_secrets(text), lines=lines)


def display_name(name: str) -> str:
    r"""Masks and escapes a path or URL like `display_text`.

    The whole text, including spaces, is one name.

    Examples:
        >>> display_name("https://host/a b?key=a b\n")
        'https://host/a b?key=***'
    """
    return escape(mask_name(name))


def escape(text: str, *, lines: bool = False) -> str:
    r"""Escapes what a terminal would act on, in Python's notation.

    These are control characters, direction marks, line separators and lone surrogates.

    Letters of all scripts, combining marks and joined emoji are kept. With `lines`, line feeds are
    kept, too.

    Examples:
        >>> escape("naïve\x1b[31m\u202e\n"), escape("a\nb\tc", lines=True)
        ('naïve\\x1b[31m\\u202e\\n', 'a\nb\\tc')
    """
    unsafe = _UNSAFE_IN_LINES if lines else _UNSAFE
    return unsafe.sub(
        lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text
    )


def shorten(text: str, room: int = 100) -> str:
    """Shortens a text of more than `room` characters to its beginning and end, for messages.

    Examples:
        >>> shorten("short"), shorten("a" * 100 + "b" * 9, 20)
        ('short', 'aaaaaaaaaa...bbbbbb')
    """
    return text if len(text) <= room else f"{text[: room * 2 // 3 - 3]}...{text[-(room // 3) :]}"


def join_names(names: Iterable[str], room: int = 100) -> str:
    """Joins names with commas; beyond `room` characters, the first names and the number of others.

    Examples:
        >>> join_names(["a", "b"]), join_names(map(str, range(1000)), 10)
        ('a, b', '0, 1, 2 and 997 more')
    """
    every = [shorten(name, room) for name in names]
    count = max(1, sum(end <= room for end in accumulate(len(name) + 2 for name in every)))
    return ", ".join(every[:count]) + (
        f" and {len(every) - count:,} more" if count < len(every) else ""
    )


def text_of(data: bytes) -> str | None:
    r"""Decodes bytes that are text: UTF-8 without control characters, except tabs and line ends.

    Else None.

    Spaces of all widths, joiners, soft hyphens, direction marks and letters unknown to this Python
    are text.

    Examples:
        >>> text_of("caf\u00e9\u00a0\u200d\n".encode()), text_of(b"\x1b[2J"), text_of(b"\xff")
        ('caf\xe9\xa0\u200d\n', None, None)
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text


def image_type(data: bytes) -> str | None:
    """The type of an image, "jpeg" or "png", from its first bytes; None for anything else."""
    return next((kind for magic, kind in _IMAGES.items() if data.startswith(magic)), None)


def escape_json(text: str) -> str:
    r"""Escapes control characters in JSON, without a change of its value.

    Examples:
        >>> escape_json('{"a": "\x9b\u202e"}')
        '{"a": "\\u009b\\u202e"}'
    """
    return _UNSAFE_IN_JSON.sub(lambda found: json.dumps(found[0])[1:-1], text)


def mask_secrets(text: str, *, unknown: bool = True) -> str:
    """Replaces the secrets in URLs, headers and connection strings with three asterisks.

    Secrets are the user before a URL's "@", a fragment, and the values in a query: those of unknown
    names too, unless `unknown` is False, but not those of names that are known to be harmless.

    Examples:
        >>> mask_secrets("sftp://user:password@host/x, https://host/y?access_token=abc&part=1")
        'sftp://user:***@host/x, https://host/y?access_token=***&part=1'
        >>> mask_secrets("simplecache::https://token@host/y?versionId=3&x=abc#abc")
        'simplecache::https://***@host/y?versionId=3&x=***#***'
    """
    if not _QUICK.search(text):
        return text
    text = _QUOTED_URL.sub(
        lambda found: f"{found[1]}{mask_name(found[2], unknown=unknown)}{found[1]}", text
    )
    text = _URL.sub(lambda found: mask_name(found[0], unknown=unknown), text)
    text = _QUERY.sub(lambda found: f"?{_mask_query(found[1], False, unknown)}", text)
    text = _HEADER.sub(rf"\1\2{STARS}", text)
    text = _BEARER.sub(rf"\1{STARS}", text)
    text = _CONNECTION.sub(rf"\1={STARS}", text)
    return _NAMED.sub(rf"\1\2\3\4{STARS}\4", text)


def mask_name(name: str, *, unknown: bool = True) -> str:
    """Masks the secrets of a path or URL; see `mask_secrets`."""
    if "://" not in name or not _SEPARATORS.search(name):
        return name
    return "".join(_mask_link(link, unknown) for link in _CHAIN.split(name))


def _mask_link(link: str, unknown: bool) -> str:
    """Masks one link of a chain of URLs."""
    scheme, colon, rest = link.partition("://")
    if not colon:
        return link
    scheme = scheme.lower()
    # Punctuation at the end belongs to the sentence around the URL.
    body = rest.rstrip("),.:;]}")
    tail = rest[len(body) :]
    rest = body
    web = scheme in ("http", "https")
    rest = _mask_user(scheme, rest)
    fragment = ""
    if web:
        rest, sharp, fragment = rest.partition("#")
        fragment = sharp + (STARS if fragment else "")
    path, question, query = rest.partition("?")
    if web:
        # Parameters of a path (`;name=value`, RFC 3986) can be secrets, like those of a query.
        path = re.sub(
            r";([^/;=]+)(=[^/;]*)?",
            lambda part: f";{_mask_query(part[0][1:], True, unknown)}",
            path,
        )
    else:
        path = re.sub(rf"(?i)([#;][\w-]*{SENSITIVE}[\w-]*=)[^#;/]+", rf"\1{STARS}", path)
    query = _mask_query(query, web, unknown)
    return f"{link[: len(scheme)]}://{path}{question}{query}{fragment}{tail}"


def _mask_user(scheme: str, rest: str) -> str:
    """Masks user and password in the part of a URL after `://`.

    A password may contain "@" and "/".
    """
    before_path = re.match(r"[^/]*@", rest)
    if before_path is None:  # perhaps a password with a slash, and no port
        if rest.startswith("arn:"):
            return rest
        before_path = re.match(r"[^/:@?]*:(?!\d*(?:/|$))[^?]*@", rest)
    if before_path is None:
        return rest
    user, password, _ = before_path[0][:-1].partition(":")
    host = rest[before_path.end() :]
    if shows_login(scheme):
        return f"{user}{f':{STARS}' if password else ''}@{host}"
    return f"{STARS}@{host}"


def _mask_query(query: str, web: bool, unknown: bool) -> str:
    """Masks the query of a URL.

    In globs "?" is a wildcard: there, values begin with the first "=".
    """
    masked = []
    hiding = web
    for part in re.split(r"([&;?#])", query):
        name, equals, value = part.partition("=")
        is_separator = part in ("", "&", ";", "?", "#")
        harmless = is_separator or _HARMLESS.fullmatch(name) or not (equals or hiding)
        if harmless or not (unknown or _SENSITIVE_NAME.match(name)):
            masked.append(part)
        else:
            hiding = True
            kept = value.rstrip("),.:;]}'\"")
            masked.append(
                f"{name}={STARS if kept else ''}{value[len(kept) :]}" if equals else STARS
            )
    return "".join(masked)


def secrets_in(url: str | None) -> list[str]:
    """The secrets that `mask_name` masks in a URL, to mask them in other messages of a client.

    Examples:
        >>> secrets_in("https://host/a?part=1&key=abcd#efgh")
        ['abcd', 'efgh']
    """
    shown = mask_name(url or "")
    found = re.fullmatch("(.+?)".join(map(re.escape, shown.split(STARS))), url or "", re.DOTALL)
    return [] if found is None or shown == url else list(found.groups())


def mask_values(text: str, options: object) -> str:
    """Masks the values of options in a client's message about them.

    It masks all strings of four letters or more, also in nested dicts and lists.
    """
    for value in sorted(_strings(options), key=len, reverse=True):
        for shown in (value, repr(value)[1:-1], json.dumps(value)[1:-1]):
            text = text.replace(shown, STARS)
    return text


def _strings(options: object) -> set[str]:
    if isinstance(options, Mapping):
        return {
            found
            for name, value in options.items()
            for found in _strings(value)
            if name not in SHOWN_OPTIONS or "@" in found or "?" in found
        }
    if isinstance(options, list | tuple | set | frozenset):
        return {found for value in options for found in _strings(value)}
    if isinstance(options, bytes):
        options = options.decode(errors="replace")
    return {options} if isinstance(options, str) and len(options) > 3 else set()


SHOWN_OPTIONS: Final = frozenset(
    {"endpoint_url", "region_name", "backend", "protocol", "target_protocol", "project"}
)
"""Storage options whose values are not masked (but secrets in their URLs are)."""


class Masked(Exception):  # noqa: N818 - it stands for any exception
    """Replaces another library's exception whose message contains a secret."""


def mask_cause(error: BaseException, options: object = None) -> BaseException:
    """A client's exception for `raise ... from`.

    It is a copy of the same name and traceback if its message has a secret, or a value of its
    options.
    """
    message = str(error)
    masked = mask_values(mask_secrets(message), options)
    inner = error.__cause__ if error.__suppress_context__ or error.__cause__ else error.__context__
    masked_inner = None if inner is None else mask_cause(inner, options)
    if masked == message and masked_inner is inner and mask_secrets(repr(error)) == repr(error):
        return error
    kind = type(type(error).__name__, (Masked,), {"__module__": type(error).__module__})
    replacement: BaseException = kind(masked).with_traceback(error.__traceback__)
    replacement.__cause__ = masked_inner
    return replacement


C = TypeVar("C", bound=type)


def display_repr(cls: C) -> C:
    """A class decorator that masks secrets and escapes control characters in `repr()`."""
    plain = cast("Callable[[Any], str]", cls.__repr__)
    cast("Any", cls).__repr__ = lambda self: display_text(plain(self), lines=True)
    return cls


def _display_arguments(record: logging.LogRecord) -> bool:
    """A filter that masks and escapes the arguments of log records, and keeps every record."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            value if isinstance(value, int | float) else display_text(str(value))
            for value in record.args
        )
    return True


logger: Final = logging.getLogger("streamrec")
"""The library's log."""
logger.addFilter(_display_arguments)


@cache
def warn_once(text: str, **extra: bool) -> None:
    """Logs a warning once in this process; `extra` are attributes of the record."""
    logger.warning("%s", text, extra=extra)
