"""The command line: `streamrec ls s3://bucket/train-*`. It uses the library's public names only.

- `program.py`: the commands by name, each imported when it is called; errors, Ctrl-C and exit
  codes;
- `commands/`: the commands: their arguments, what they do and print. `ls`, `count` and `info` are
  in `info.py`, `head` and `cat` in `cat.py`, `manifest` in `index.py`, any other in a file of its
  name;
- `sources.py`, `reading.py`: from names to shards, and from shards to blocks of records;
- `writing.py`: new shards;
- `output.py`, `records.py`: text, tables and progress, records;
- `cluster.py`: tasks on a Ray cluster.
"""

import os
import sys
from importlib import import_module

from streamrec.errors import install_command

__all__ = ["main"]


def main() -> None:
    """Runs the command that the program was called with.

    Ends the process with its exit code.
    """
    os.environ.setdefault(
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false"
    )  # else gcsfs asks a second, gRPC server
    try:
        program = import_module("streamrec.cli.program")
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(
            f"the streamrec command needs the package {error.name}: {install_command('cli')}",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(program.run(sys.argv[1:]))
