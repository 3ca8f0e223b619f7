"""The program: which commands there are, and how a run of one ends.

Exit codes: 0 success; 1 the data is bad; 2 the command was typed wrong; 3 the store failed; 4 the
target exists already; 130 Ctrl-C; 141 the reader of standard output is gone (as for a program that
SIGPIPE ends).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from io import StringIO, TextIOWrapper
from typing import Any, Final

import click

import streamrec
from streamrec import CorruptRecordError, FeatureError, StreamrecError
from streamrec.cli.library import (
    AlreadyExistsError,
    IntegrityError,
    ManifestError,
    MissingExtraError,
    TruncatedShardError,
    display_text,
)
from streamrec.cli.options import QUIET_OPTIONS
from streamrec.cli.output import print_error, print_json

BAD_DATA: Final = 1
STORE_FAILED: Final = 3

COMMANDS: Final = {
    "ls": "Lists files and their sizes.",
    "info": "Shows shards, records, compression, features and the first record.",
    "head": "Prints the first records.",
    "cat": "Prints all records, as text, JSON lines or raw bytes.",
    "count": "Counts records.",
    "verify": "Checks every CRC32C or compares shards with a manifest, and repairs damage.",
    "manifest": "Writes a manifest for existing shards, compressed or not.",
    "index": "Writes an index, so that any record can be read by its number.",
    "stat": "Shows statistics for each feature, in a terminal or as an HTML page.",
    "convert": "Converts to and from Parquet, JSON lines and WebDataset tar.",
    "cp": "Copies shards byte for byte, and checks every CRC32C.",
    "reshard": "Splits, merges, compresses or shuffles records into new shards.",
    "bench": "Measures how fast a store delivers objects, and says what to set.",
    "doctor": "Checks step by step whether a store works as it should.",
    "recover": "Finishes or undoes a replacement that was interrupted.",
    "cache": "Shows, fills and empties a cache on a local disk.",
    "demo": "Writes a small data set to try the commands on.",
}


FILES: Final = {"ls": "info", "count": "info", "head": "cat", "manifest": "index"}
"""The files of commands that are not in the file of their name."""


class LogHandler(logging.Handler):
    """Prints the log on standard error, that of other libraries included.

    Secrets are masked, and control characters escaped. A progress bar stays below the lines.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Prints the record in one line, and its traceback, if it has one, in further lines."""
        click.echo(display_text(self.format(record), lines=True), err=True)


class Commands(click.Group):
    """The commands. Each is imported when it is called: help must not wait for their imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command of this name; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"streamrec.cli.commands.{FILES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        command.params += [option for option in QUIET_OPTIONS if option not in command.params]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command that was typed.

        Raises:
            click.UsageError: There is none; the message proposes the most similar name.
        """
        if args[0] not in COMMANDS:
            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f"Did you mean {near[0]}?" if near else "See streamrec --help."
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; ends without a message if the reader of its output is gone."""
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            # Python flushes standard output once more at its exit, which would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing one."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 success, 1 bad data, 2 wrong usage, 3 store failure, 4 target exists, "
        "130 interrupted."
    ),
)
@click.version_option(streamrec.__version__)
@click.option(
    "-v", "--verbose", is_flag=True, help="Show the log: retries, lost data, written shards."
)
def streamrec_command(verbose: bool) -> None:
    """Inspects and rewrites TFRecord shards on disk, S3, GCS, Azure and HTTP.

    A SOURCE is a URL or path; a pattern ('s3://b/train-*.tfrecord', '{00000..00127}'), in quotes; a
    directory; or a manifest (*.json) or an index (*.index), which stands for its shards.
    """
    handler = LogHandler()
    level = logging.INFO if verbose else logging.CRITICAL
    logging.basicConfig(level=level, handlers=[handler], format="%(name)s: %(message)s")
    # Our warnings are always shown, for example that a store does not answer.
    logging.getLogger("streamrec").setLevel(logging.INFO if verbose else logging.WARNING)
    if not verbose:
        # Commands report lost data and gaps in names themselves, in results and notes.
        handler.addFilter(
            lambda record: not (hasattr(record, "loss") or hasattr(record, "told_by_names"))
        )


def run(arguments: Sequence[str]) -> int:
    """Runs one command; returns the exit code.

    An error becomes one line on standard error, or an object of JSON if `--json` was typed.
    """
    as_json = "--json" in arguments
    if isinstance(sys.stdout, TextIOWrapper):
        # Names and data may hold characters that the encoding of the terminal lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = streamrec_command.main(list(arguments), prog_name="streamrec", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        if as_json:
            return print_failure(error.format_message(), error, error.exit_code, as_json)
        shown = StringIO()
        message = error.format_message()
        error.show(shown)
        text = shown.getvalue()
        # The message of a missing parameter has several lines: click lists the choices in them.
        if not isinstance(error, click.MissingParameter):
            text = text.replace(message, display_text(message))
        click.echo(display_text(text, lines=True), err=True, nl=False)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        return print_failure("interrupted", error, 130, as_json)
    except (StreamrecError, OSError) as error:  # OSError: standard output on a full disk, say
        return print_failure(error, error, exit_code_of(error), as_json)


def exit_code_of(error: StreamrecError | OSError) -> int:
    """The exit code for an error: 1, 2, 3 or 4, as the head of this file says."""
    match error:
        case (
            CorruptRecordError()
            | TruncatedShardError()
            | FeatureError()
            | ManifestError()
            | IntegrityError()
        ):
            return BAD_DATA
        case MissingExtraError():
            return 2
        case AlreadyExistsError():
            return 4
    return STORE_FAILED


def print_failure(what: object, error: BaseException, code: int, as_json: bool) -> int:
    """Prints a message and the notes of an error; returns the exit code.

    A note says, for example, where old data is kept that could not be put back.

    Args:
        what: The message.
        error: The error, whose place and notes are printed.
        code: The exit code.
        as_json: Whether to print an object of JSON.
    """
    notes = getattr(error, "__notes__", [])
    if as_json:
        places = {
            name: getattr(error, name, None) for name in ("path", "offset", "record", "feature")
        }
        found = {name: value for name, value in places.items() if value is not None}
        row = {
            "error": type(error).__name__,
            "message": str(what),
            **found,
            "notes": notes,
            "exit_code": code,
        }
        print_json(row, file=sys.stderr)
        return code
    for line in (what, *notes):
        print_error(line)
    return code
