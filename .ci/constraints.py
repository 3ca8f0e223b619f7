"""Prints the versions of all packages that the tests use: `make constraints`.

They are those of the environment that runs this, which is the one that the tests passed in: what
streamrec and its extras (the arguments) require, and what these require in turn. Markers are those
of this Python; a package that only another Python or system needs is not pinned.
"""

import sys
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(name: str, extras: frozenset[str], found: dict[str, str], seen: set[object]) -> None:
    """Adds the packages that a package with these extras requires to `found`."""
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    for line in distribution(name).requires or ():
        wanted = Requirement(line)
        environments = [{"extra": extra} for extra in extras] or [{"extra": ""}]
        if wanted.marker and not any(map(wanted.marker.evaluate, environments)):
            continue
        try:
            version = distribution(wanted.name).version
        except PackageNotFoundError:
            continue  # of an extra that is not installed here
        if "+" not in version:  # a local build, such as torch's for CPUs, is on no index
            found[canonicalize_name(wanted.name)] = version
        closure(wanted.name, frozenset(wanted.extras), found, seen)


if __name__ == "__main__":
    packages: dict[str, str] = {}
    closure("streamrec", frozenset(sys.argv[1].split(",")), packages, set())
    print("# The versions that the tests passed with: `make constraints` writes this file.")
    for package in sorted(packages):
        print(f"{package}=={packages[package]}")
