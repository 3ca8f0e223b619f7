"""The options and arguments that several commands share, and the parsers of their values."""

from __future__ import annotations

import json
import math
import operator
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce, wraps
from types import MappingProxyType
from typing import Any, Final, Literal

import click
from click.shell_completion import CompletionItem

from streamrec.cli.output import PROGRESS

CREDENTIALS: Final = (
    "key",
    "secret",
    "token",
    "username",
    "password",
    "account_name",
    "account_key",
)
"""Storage options whose values stay text, even if they consist of digits."""

SECRET: Final = re.compile("secret|token|password|account_key|connection_string", re.IGNORECASE)

SOURCES: Final = "streamrec.sources"
DRY_RUN: Final = "streamrec.dry_run"
JOBS: Final = "streamrec.jobs"
"""The keys under which options keep values in the context of the command."""

TOKEN: Final = re.compile(
    r"""\s*([=!]=|[<>]=?|[()]|'[^']*'|"[^"]*"|`[^`]+`|[A-Za-z_][\w./-]*|[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))"""
)
"""A token of a `--where` expression."""

COMPARISONS: Final = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
UNITS: Final = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
}

Decorated = Callable[..., Any]

Overwrite = bool | Literal["unsecured"]
"""What `--overwrite` and `--overwrite-unsecured` let a command replace."""


def examples(*lines: str) -> str:
    """The last section of a command's help: what people type."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def complete_files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tells the shell to complete names of files where a path or URL is typed."""
    return [CompletionItem(incomplete, type="file")]


def parse_options(
    _: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> dict[str, Any]:
    """Parses `-o key=value`: a value that is JSON has its meaning, any other is text.

    The value of a credential is text even if it consists of digits.

    Examples:
        >>> parse_options(None, None, ["anon=true", "key=abc", 'client_kwargs={"verify": false}'])
        {'anon': True, 'key': 'abc', 'client_kwargs': {'verify': False}}
        >>> parse_options(None, None, ["secret=12345", "max_concurrency=3"])
        {'secret': '12345', 'max_concurrency': 3}
    """
    options: dict[str, Any] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not equals or not key:
            # The message does not quote the text: it may be a secret.
            message = "an option has no '=': write -o endpoint_url=http://127.0.0.1:9000"
            raise click.BadParameter(message, param=parameter)
        options[key] = parse_value(value)
        if key in CREDENTIALS and isinstance(options[key], int | float):
            options[key] = value
    return options


def format_options(storage_options: Mapping[str, Any]) -> str:
    r"""The options as a user would type them, each after a space, for a command that is proposed.

    Values that may be secret are left out.

    Examples:
        >>> format_options({"anon": True, "client_kwargs": {"verify": False}, "secret": "abc"})
        ' -o anon=true -o \'client_kwargs={"verify": false}\' -o secret=...'
    """
    words = []
    for key, value in storage_options.items():
        plain = isinstance(value, str) and parse_value(value) == value
        text = value if plain else json.dumps(value)
        hidden = SECRET.search(key if isinstance(value, str) else f"{key} {text}")
        words.append(f" -o {shlex.quote(f'{key}={text}')}" if not hidden else f" -o {key}=...")
    return "".join(words)


def parse_value(value: str) -> Any:
    """Parses a value as JSON; text that is not JSON is returned as it is."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def parse_size(_: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Parses a number of bytes, such as 200MB or 64MiB.

    Examples:
        >>> [parse_size(None, None, text) for text in ("1.5MB", "64 KiB", "100")]
        [1500000, 65536, 100]
    """
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]+\.?[0-9]*)\s*(|[kmg]i?)b?", text.lower())
    size = math.floor(float(found[1]) * UNITS[found[2]]) if found else 0
    if size < 1:
        raise click.BadParameter(
            f"{text!r} is not a size: write 200MB, 64MiB or a number of bytes", param=parameter
        )
    return size


def parse_where(
    _: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[Any, ...] | None:
    """Parses a `--where` expression to a tree of tuples. Nothing of it runs as Python.

    Examples:
        >>> parse_where(None, None, "label == 3 and not (name < 'm' or image/width)")
        ('and', ('==', 'label', 3), ('not', ('or', ('<', 'name', 'm'), ('has', 'image/width'))))
    """
    if text is None:
        return None
    words: list[str] = []
    place = 0
    while found := TOKEN.match(text, place):
        words.append(found[1])
        place = found.end()
    try:
        if text[place:].strip():
            raise ValueError(f"{text[place:].strip()!r} has no meaning here")
        expression = parse_joined(words, "or", "and")
        if words:
            raise ValueError(f"{words[0]!r} follows a complete expression")
    except (ValueError, RecursionError) as error:
        message = (
            f"{text!r}: {error}: write \"label == 3 and not (name == 'cat' or `image/width` > 90)\""
        )
        raise click.BadParameter(message, param=parameter) from error
    return expression


def parse_joined(words: list[str], *joins: str) -> tuple[Any, ...]:
    """Parses an expression at the beginning of the words, and removes these from the list.

    Args:
        words: The tokens that are left.
        joins: The operators that may join comparisons here, the one that binds least first.
    """
    if joins:
        found = parse_joined(words, *joins[1:])
        while words[:1] == [joins[0]]:
            found = words.pop(0), found, parse_joined(words, *joins[1:])
        return found
    word = words.pop(0) if words else "the end"
    if word == "not":
        return "not", parse_joined(words)
    if word == "(":
        found = parse_joined(words, "or", "and")
        if words[:1] != [")"]:
            raise ValueError("a parenthesis is not closed")
        words.pop(0)
        return found
    if not re.match("[A-Za-z_`]", word) or word in ("and", "or", "the end"):
        raise ValueError(f"{word!r} where the name of a feature is expected")
    if words[:1] and words[0] in COMPARISONS:
        return words.pop(0), word.strip("`"), parse_literal(words.pop(0) if words else "the end")
    return "has", word.strip("`")


def parse_literal(word: str) -> str | int | float:
    """The number or the quoted text that a token of `--where` stands for."""
    if word[0] in "'\"":
        return word[1:-1]
    try:
        return int(word) if re.fullmatch("[+-]?[0-9]+", word) else float(word)
    except ValueError:
        raise ValueError(f"{word!r} where a number or 'text' is expected") from None


class Sources(tuple[str, ...]):
    """The names that were typed, with the options of the same command that say how to read them.

    Attributes:
        shard_root: A directory in which manifests may name shards, besides their own; None for
            no other.
        split: The split to read of a directory or pattern; None for all.
        storage_options: The options of the stores.
    """

    shard_root: str | None = None
    split: str | None = None
    storage_options: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def from_argument(
        cls, context: click.Context, _: click.Parameter, names: Sequence[str]
    ) -> Sources:
        """Makes `Sources` of a command's argument and of the options that were typed before."""
        found = cls(names)
        vars(found).update(context.meta.get(SOURCES, {}))
        return found

    @property
    def reading(self) -> dict[str, Any]:
        """The keyword arguments that the library's functions take for a manifest or an index."""
        return {"shard_root": self.shard_root, "storage_options": self.storage_options}

    def only(self, names: Sequence[str]) -> Sources:
        """Other names with the same options."""
        found = type(self)(names)
        vars(found).update(vars(self))
        return found

    @staticmethod
    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        """Keeps an option's value in the command's context, for `from_argument`."""
        found = (
            parse_options(context, parameter, value)
            if parameter.name == "storage_options"
            else value
        )
        context.meta.setdefault(SOURCES, {})[parameter.name] = found
        return found


def parse_names(_: click.Context, parameter: click.Parameter, text: str | None) -> list[str] | None:
    """Splits `A,B` into names; None if there are none."""
    return [name for name in (text or "").split(",") if name] or None


_storage_options = partial(
    click.option,
    "-o",
    "--option",
    "storage_options",
    multiple=True,
    is_eager=True,
    metavar="KEY=VALUE",
    callback=Sources.keep,
    help=(
        "A storage option, such as key=... or anon=true; may be repeated. A value that is not JSON "
        "is text."
    ),
)
storage_options = _storage_options()
source_options = _storage_options(expose_value=False)
target_options = click.option(
    "-O",
    "--target-option",
    "target_options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_options,
    help="A storage option for TARGET. If there is one, TARGET gets none of the -o options.",
)
shard_root = click.option(
    "--shard-root",
    metavar="URL",
    is_eager=True,
    expose_value=False,
    callback=Sources.keep,
    shell_complete=complete_files,
    help="The directory of the shards, if the manifest or index is in another one.",
)
split = click.option(
    "--split",
    metavar="NAME",
    is_eager=True,
    expose_value=False,
    callback=Sources.keep,
    help=(
        "Read only this split of a directory or pattern, such as train for "
        "ints-train.tfrecord-00000-of-00008; all reads every split. In a folder of TensorFlow "
        "Datasets also a slice or a sum: 'train[:10%]+test'."
    ),
)
target = click.argument("target", shell_complete=complete_files)


def file_option(
    *names: str, metavar: str = "FILE", **settings: Any
) -> Callable[[Decorated], Decorated]:
    """Adds an option that takes a path or URL; `settings` are those of `click.option`."""
    return click.option(*names, metavar=metavar, shell_complete=complete_files, **settings)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
features = click.option(
    "--features",
    metavar="A,B",
    callback=parse_names,
    help="Keep only these features (comma-separated).",
)
where = click.option(
    "--where",
    metavar="EXPR",
    callback=parse_where,
    help='Keep only records for which this is true, such as "label == 3".',
)


def overwrite_option(what: str) -> Callable[[Decorated], Decorated]:
    """Two flags that become one parameter `overwrite`: False, True or "unsecured"."""

    def decorate(function: Decorated) -> Decorated:
        @wraps(function)
        def call(*words: Any, overwrite: bool, overwrite_unsecured: bool, **named: Any) -> Any:
            return function(
                *words, overwrite="unsecured" if overwrite_unsecured else overwrite, **named
            )

        unsecured = click.option(
            "--overwrite-unsecured",
            is_flag=True,
            help=(
                f"{what}, even those that your credentials may not read. They are lost if the "
                "command fails."
            ),
        )
        return click.option("--overwrite", is_flag=True, help=f"{what}.")(unsecured(call))

    return decorate


overwrite = overwrite_option("Replace existing files")
shard_bytes = click.option(
    "--shard-bytes",
    metavar="SIZE",
    callback=parse_size,
    help=(
        "Start a new file at about this size, such as 200MB or 64MiB.  [default for several files: "
        "200MB]"
    ),
)
shard_records = click.option(
    "--shard-records", type=click.IntRange(1), metavar="N", help="Start a new file after N records."
)


def keep(name: str, *flags: str, **settings: Any) -> Callable[[Decorated], Decorated]:
    """Makes an option whose value is kept in the context under a name, and not passed on."""

    def callback(context: click.Context, _: click.Parameter, value: Any) -> None:
        context.meta[name] = value

    return click.option(*flags, expose_value=False, callback=callback, **settings)


dry_run = keep(
    DRY_RUN,
    "--dry-run",
    is_flag=True,
    help="Check everything, print what would be written, and stop.",
)
jobs = keep(
    JOBS,
    "-j",
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    help="Read N shards at the same time.  [default: 8]",
)


def keep_progress(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keeps the values of `--progress` and `-q`; `-q` wins over `--progress`."""
    if value and context.meta.get(PROGRESS) != "quiet":
        context.meta[PROGRESS] = "quiet" if parameter.name == "quiet" else value


QUIET_OPTIONS: Final = (
    click.Option(
        ["--progress"],
        type=click.Choice(["auto", "never"]),
        expose_value=False,
        callback=keep_progress,
        help=(
            "auto: a bar in a terminal, otherwise a line every ten seconds, on standard error.  "
            "[default: auto]"
        ),
    ),
    click.Option(
        ["-q", "--quiet"],
        is_flag=True,
        expose_value=False,
        callback=keep_progress,
        help="Print neither progress nor notes; only results and errors.",
    ),
)
"""Options that every command has."""


def sources(function: Decorated) -> Decorated:
    """Adds the argument SOURCE..., which takes one or more names, `--split` and `--shard-root`."""
    return names_argument("sources", "SOURCE...")(split(shard_root(function)))


def names_argument(name: str, metavar: str) -> Callable[[Decorated], Decorated]:
    """Adds an argument that takes one or more names."""
    return click.argument(
        name,
        nargs=-1,
        required=True,
        metavar=metavar,
        callback=Sources.from_argument,
        shell_complete=complete_files,
    )


def selection_options(count: int | None) -> Callable[[Decorated], Decorated]:
    """Adds the options of `head` and `cat` that say which records are printed, and how.

    Args:
        count: How many records are printed without `-n`; None for all.
    """
    number = click.IntRange(0)
    # Help lists the options in the reverse of this order: each decorator adds its own in front.
    choices = (
        click.option(
            "--from-byte",
            "byte",
            type=number,
            metavar="N",
            help=(
                "Start at the first record whose header is at or after byte N (one uncompressed "
                "shard)."
            ),
        ),
        click.option(
            "--from-record",
            "first",
            type=number,
            default=0,
            metavar="N",
            help="Skip the first N records.",
        ),
        click.option(
            "--as",
            "output_format",
            type=click.Choice(["text", "raw"]),
            default="text",
            show_default=True,
            help="How to print them; --json for JSON.",
        ),
        click.option(
            "-n",
            "count",
            metavar="N",
            type=number,
            default=count,
            show_default=True,
            help="Print at most N records.",
        ),
    )
    return lambda function: reduce(lambda decorated, choice: choice(decorated), choices, function)
