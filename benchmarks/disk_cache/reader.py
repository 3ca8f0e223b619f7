"""One rank of a side, in a process of its own: `python -m benchmarks.disk_cache.reader`.

It reads lines of JSON and answers each with a line. The first line has the side and its place; then
each is an epoch, `{"epoch": 0, "stop_after": null}`. With `stop_after`, it stops within the epoch
after so many images, answers, and waits: the next thing that happens to it is SIGKILL.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.disk_cache.data import number_of
from benchmarks.disk_cache.sides import SIDES, Epoch, Place, load
from benchmarks.harness.meter import Meter, pin

ANSWER = "the answer of the reader: "


def main() -> None:
    """Reads epochs until the input ends."""
    task = json.loads(sys.stdin.readline())
    # the server has the last core
    pin(range(max(1, (os.cpu_count() or 2) - 1)))
    side = task["side"]
    load(side)
    answer(ready=True)
    epochs: Epoch | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        with Meter() as meter:
            if epochs is None:
                epochs = SIDES[side](Place(**task["place"]))
            figures = read(epochs, asked["epoch"], asked["stop_after"])
        answer(**figures, cpu_s=meter.cpu_seconds)


def read(epochs: Epoch, number: int, stop_after: int | None) -> dict[str, int]:
    """Reads an epoch, or its beginning; returns what it gave."""
    figures = {"images": 0, "bytes": 0, "sum": 0}
    for image in epochs(number):
        figures["images"] += 1
        figures["bytes"] += len(image)
        figures["sum"] += number_of(image)
        if figures["images"] == stop_after:
            answer(**figures)
            sys.stdin.readline()  # until this process is killed
    return figures


def answer(**figures: Any) -> None:
    """Writes a line for the parent; libraries print other lines."""
    print(f"\n{ANSWER}{json.dumps(figures)}", flush=True)


if __name__ == "__main__":
    main()
