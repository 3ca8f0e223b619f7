"""The command line: `streamrec ls s3://bucket/train-*`.

- `program.py`: the commands by name, each imported when it is called; errors, Ctrl-C and exit
  codes.
- `commands/`: the commands: their arguments, what they do, and what they print. `ls`, `count` and
  `info` are in `info.py`, `head` and `cat` in `cat.py`, `manifest` in `index.py`; any other command
  is in a file of its name.
- `library`: the names of the library that the command line uses, besides those of `streamrec`.
- `formats`: Examples as Parquet, JSON lines and WebDataset tar, for `convert`.
- `options.py`: options and arguments that several commands share.
- `sources.py`, `reading.py`: from names to shards, and from shards to blocks of records.
- `writing.py`: new shards.
- `output.py`, `records.py`: text, tables, progress; records for people and as JSON.
- `cluster.py`: tasks on a Ray cluster.
"""

import os
import sys
from importlib import import_module

from streamrec.cli.library import install_command

__all__ = ["main"]


def main() -> None:
    """Runs the command that was typed, and ends the process with its exit code."""
    # With this on, gcsfs asks a second server over gRPC, which not every network allows.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    try:
        # click is imported here, and rich by the commands that show a table or a bar.
        code = import_module("streamrec.cli.program").run(sys.argv[1:])
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("click", "rich"):
            raise
        print(
            f"the streamrec command needs the package {package}: {install_command('cli')}",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(code)
