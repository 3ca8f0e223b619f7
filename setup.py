"""Builds the one C extension. All else about the package is in pyproject.toml.

A failing compiler fails the install: there is nothing to fall back to.
"""

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SANITIZE = os.environ.get("STREAMREC_SANITIZE") == "1"
SOURCES = Path("streamrec/kernels/src")
STRICT = [
    "-std=c11",
    "-O3",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror=implicit-function-declaration",
]
ALIGNED = ["-falign-functions=64", "-falign-jumps=32", "-falign-loops=64"]
"""Without these, a change in one kernel moves the loops of others: parsing forty features took 190
to 212 us a batch, with them 181."""
SANITIZERS = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
]

HELP = """
streamrec's C extension did not build: {error}

It needs a C compiler and the headers of this Python:
    Debian, Ubuntu   apt-get install gcc python3-dev
    Fedora, RHEL     dnf install gcc python3-devel
    macOS            xcode-select --install
"""


class LoudBuildExt(build_ext):
    """Says what to install when the compiler is missing or fails."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:
            raise SystemExit(HELP.format(error=error)) from error


native = Extension(
    "streamrec.kernels._native",
    sources=sorted(str(path) for path in SOURCES.rglob("*.c")),
    depends=sorted(str(path) for path in SOURCES.rglob("*.h")),
    include_dirs=[str(SOURCES)],
    define_macros=[("Py_LIMITED_API", "0x030b0000")],
    extra_compile_args=STRICT + (SANITIZERS if SANITIZE else ALIGNED),
    extra_link_args=SANITIZERS if SANITIZE else [],
    py_limited_api=True,
)

setup(
    ext_modules=[native],
    cmdclass={"build_ext": LoudBuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
