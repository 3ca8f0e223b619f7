"""The command line of a benchmark, made from the signature of its `main`.

    def main(*, rounds: int = 3, only: Names = ("local", "s3"), memory: bool = False) -> None: ...

    if __name__ == "__main__":
        run(main)

has the options `--rounds 3`, `--only local,s3` and `--memory`; `--help` shows the docstring of the
module. A parameter without a default is a positional argument. Every benchmark has `--dry`: it
prints its rows, and keeps no data.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.harness import results

Names = tuple[str, ...]
"""The type of an option with several names, separated by commas (or by semicolons, where there is
one: names of sides have commas in them)."""


def run(main: Callable[..., Any], words: Sequence[str] | None = None) -> None:
    """Calls `main` with the options of the command line; ends the process with what it returns."""
    given = options(main, words)
    results.keep(not given.pop("dry"))
    sys.exit(main(**given))


def options(main: Callable[..., Any], words: Sequence[str] | None = None) -> dict[str, Any]:
    """The keyword arguments for `main`, from these words or from the command line."""
    return vars(parser(main).parse_args(words))


def parser(main: Callable[..., Any]) -> argparse.ArgumentParser:
    """A parser with an option for each parameter of `main`."""
    made = argparse.ArgumentParser(
        description=main.__globals__.get("__doc__"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, parameter in inspect.signature(main).parameters.items():
        default = parameter.default
        option = f"--{name.replace('_', '-')}"
        if default is inspect.Parameter.empty:
            made.add_argument(name)
        elif default is True or default is False:
            made.add_argument(option, action="store_true")
        elif isinstance(default, tuple):
            made.add_argument(option, type=names, default=default, metavar="NAME,NAME")
        else:
            made.add_argument(option, type=type(default), default=default)
    made.add_argument("--dry", action="store_true", help="keep no data in benchmarks/results")
    return made


def names(text: str) -> Names:
    """The names of an option.

    >>> names("four,forty"), names("tf.data;streamrec, in turn"), names("streamrec, in turn;")
    (('four', 'forty'), ('tf.data', 'streamrec, in turn'), ('streamrec, in turn',))
    """
    separator = ";" if ";" in text else ","
    return tuple(name.strip() for name in text.split(separator) if name.strip())
