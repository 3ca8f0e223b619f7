"""Programs: runs a store in a process of its own, and starts that from Python.

A program prints its URL as the first line of its standard output, and ends when it is interrupted
or terminated. With `--with-parent` it also ends when its standard input does: whoever holds the
other end of that pipe has died (and so have the processes that were forked from it since).
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Self

from streamrec.bridge.loop import Latch
from tests.servers.control import RemoteControl
from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.network.fault_server import FaultServer


def run(
    name: str, needed: Mapping[str, str], make: Callable[[dict[str, str], Faults, int], FaultServer]
) -> None:
    """The main function of a program.

    Args:
        name: What the help calls it.
        needed: Options that must be given, and what they mean.
        make: Makes the server from the needed options, the faults and the port.
    """
    parser = argparse.ArgumentParser(prog=name)
    for option, meaning in needed.items():
        parser.add_argument(option, required=True, help=meaning)
    parser.add_argument(
        "--port", type=int, default=0, help="0, the default, lets the system choose"
    )
    parser.add_argument(
        "--faults", default="", help="JSON of tests.servers.faults.Faults; none by default"
    )
    parser.add_argument("--with-parent", action="store_true", help="end when standard input ends")
    given = vars(parser.parse_args())
    faults = Faults(**json.loads(given["faults"])) if given["faults"] else NO_FAULTS
    ending = (
        Latch()
    )  # not an Event: a signal that comes while its lock is held would wait for itself
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.open())
    with make(given, faults, given["port"]) as server:
        print(server.url, flush=True)
        if given["with_parent"]:
            threading.Thread(target=_until_eof, args=(ending,), daemon=True).start()
        ending.wait()


def environment() -> dict[str, str]:
    """That of a process which finds these modules, whatever its directory is."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _until_eof(ending: Latch) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    ending.open()


class ServerProcess(RemoteControl):
    """A store in a process of its own, which dies with this one; a context manager that ends it.

    Args:
        module: "tests.servers.objectstore".
        options: Its command line beside the faults, such as ("--root", directory).
        faults: In force at the start.

    Raises:
        RuntimeError: It did not start; what it wrote went to standard error.
    """

    def __init__(self, module: str, options: Collection[str], faults: Faults = NO_FAULTS) -> None:
        line = [
            sys.executable,
            "-m",
            module,
            *options,
            "--with-parent",
            "--faults",
            json.dumps(faults.to_dict()),
        ]
        self._process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        super().__init__(self._process.stdout.readline().strip())
        if not self.url:
            self.close()
            raise RuntimeError(
                f"{module} ended with {self._process.returncode} before it served; see standard "
                "error"
            )

    def close(self) -> None:
        """Ends the process and waits for it."""
        # the end of its input would not do: processes forked from this one hold the pipe too
        self._process.terminate()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
