"""`streamrec recover`: finishes or undoes what a killed run was replacing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from streamrec.cli import options
from streamrec.cli.library import LEASE_SECONDS, Recovery, display_name, find_unexplained, recover
from streamrec.cli.output import plural, print_error, print_json, print_line
from streamrec.cli.program import BAD_DATA
from streamrec.cli.reading import run
from streamrec.cli.sources import directory_of, storages_for


@click.command(
    "recover",
    epilog=options.examples("streamrec recover train/", "streamrec recover s3://bucket/train/"),
)
@click.argument("directory", shell_complete=options.complete_files)
@click.option(
    "--wait",
    type=click.FloatRange(min=0.5),
    default=LEASE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help=(
        "How long to watch the lock of a writer in a store. If it does not change, the writer was "
        "killed. Local locks end with their process."
    ),
)
@options.as_json
@options.storage_options
def recover_command(
    directory: str, wait: float, as_json: bool, storage_options: Mapping[str, Any]
) -> int:
    """Finishes or undoes what a killed run was replacing, in DIRECTORY and below.

    If all new objects were in place, only the hidden old ones are removed. Otherwise the old
    objects are put back, and the new ones removed. An object that another writer has written since
    stays as it is. The command waits for a run that is still at work, and you can run it again.
    """
    folder = directory_of(f"{directory.rstrip('/')}/") or directory
    done, unexplained = run(recover_all(folder, wait, storage_options))
    if as_json:
        print_json({"replacements": [asdict(each) for each in done], "unexplained": unexplained})
    else:
        show(folder, done, unexplained)
    return BAD_DATA if unexplained or any(each.left for each in done) else 0


async def recover_all(
    folder: str, wait: float, storage_options: Mapping[str, Any]
) -> tuple[list[Recovery], list[str]]:
    """Recovers all replacements in a directory.

    Returns:
        What was done, and the paths of old objects that no journal explains.
    """
    async with storages_for(storage_options) as storages:
        done = [each async for each in recover(storages, folder, wait)]
        return done, await find_unexplained(storages, folder)


def show(folder: str, done: list[Recovery], unexplained: list[str]) -> None:
    """Prints what was done, and on standard error what is left to do."""
    # What was done goes to standard output, for scripts; what a person must look at does not.
    for each in done:
        if each.state == "complete":
            print_line("the new objects were all in place: the hidden old ones are removed")
        elif each.state == "superseded":
            print_line("another run has replaced all objects since: the hidden ones are removed")
        else:
            print_line(
                f"the run was still under way: {plural(len(each.restored), 'old object')} put "
                f"back, {plural(len(each.removed), 'new object')} removed"
            )
        for path, why in each.left.items():
            print_error(f"{display_name(path)} was left as it is: {why}")
    if unexplained:
        print_error(
            f"{display_name(unexplained[0])} is the old content of an object, and nothing says "
            f"whether the run that replaced it was complete: there are {len(unexplained):,} such "
            "objects; compare them with the new ones, and rename or remove them yourself"
        )
    elif not done:
        print_line(f"there is nothing to recover in {display_name(folder)}")
