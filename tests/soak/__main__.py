"""Soaks:
`python
-m tests.soak [reading writing training] [--seconds 300] [--kills 100] [--training-kills 50]`.

Prints a line for each server or kind of run; an AssertionError names the seed.
"""

import argparse
from importlib.util import find_spec

from tests.servers.real import fake_gcs, seaweedfs
from tests.soak import reading, training, writing


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help="by default all")
    for name, value in (("seconds", 300), ("kills", 100), ("training-kills", 50), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    parts = given.parts or ["reading", "writing", "training"]
    for kind, server in {"s3": seaweedfs, "gcs": fake_gcs}.items():
        with server() as store:
            if "reading" in parts:
                print(
                    f"{kind}: {reading.soak(store, given.seed, given.seconds / 2, megabytes=4)}",
                    flush=True,
                )
            if "writing" in parts:
                print(f"{kind}: {writing.soak(kind, given.kills, given.seed, store)}", flush=True)
    for shape in training.SHAPES if "training" in parts else ():
        if shape == "loader" and find_spec("torchdata") is None:
            print("loader: not run, torchdata is not installed (make peers)")
            continue
        print(f"{shape}: {training.soak(shape, given.training_kills, given.seed)}", flush=True)


if __name__ == "__main__":
    main()
