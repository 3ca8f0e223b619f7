"""The command line: `streamrec ls s3://bucket/train-*`. It stands on the library's public names only.

- `program.py`: the commands by name, each loaded when it is asked for; errors, Ctrl-C and exit codes;
- `commands/`: a file for each command: its arguments, and what it prints;
- `sources.py`, `reading.py`: from names to shards, and from shards to blocks of records;
- `output.py`, `rendering.py`, `progress.py`, `records.py`: what is printed, and how;
- `cluster/`: the same work on a Ray cluster;
- `probing/`: how a store answers, and how fast;
- `stats/`: what is counted of features, in bounded memory; `plots/`: how that is drawn.
"""

import os
import sys
from importlib import import_module

__all__ = ["main"]


def main() -> None:
    """Runs the command that the program was called with, and ends the process with its exit code."""
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # else gcsfs asks a second, gRPC server
    try:
        program = import_module("streamrec.cli.program")
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(f"the streamrec command needs the package {error.name}: pip install 'streamrec[cli]'", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(program.run(sys.argv[1:]))
