"""Runs one server and ends it when the process that wanted it is gone, however that ended.

Usage: `watchdog.py DIRECTORY COMMAND...`, with a pipe as standard input. When a byte comes, or the
pipe closes (the parent crashed or was killed), the server is killed and the directory is removed.
Run as a script by `tests.servers.real`; imports nothing but the standard library.
"""

import shutil
import subprocess
import sys
import threading


def main(directory: str, command: list[str]) -> int:
    """Runs the command until it ends or standard input does.

    Args:
        directory: Removed at the end.
        command: The server, in the foreground.

    Returns:
        The server's exit status.
    """
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=directory)

    def wait_for_parent() -> None:
        sys.stdin.buffer.read(1)
        server.kill()

    threading.Thread(target=wait_for_parent, daemon=True).start()
    try:
        return server.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
