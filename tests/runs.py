"""What tests of many packages do: write shards, read on to an error, run a program in a new
interpreter.
"""

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from streamrec import encode_records


def write_shards(folder: Path, shards: Iterable[Iterable[bytes]], name: str = "s-{}") -> list[str]:
    """Writes records to a shard each; returns the paths. `{}` in the name is the number of the
    shard.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, records in enumerate(shards):
        paths.append(str(folder / name.format(number)))
        Path(paths[-1]).write_bytes(encode_records(records))
    return paths


def flip_bit(path: str | Path, position: int) -> None:
    """Changes one bit of a file, in the byte at a position."""
    data = bytearray(Path(path).read_bytes())
    data[position] ^= 1
    Path(path).write_bytes(data)


def tarred(*members: tuple[str, bytes], headers: Mapping[str, str] | None = None) -> bytes:
    """A tar of files by their names, with the headers of all."""
    file = io.BytesIO()
    with tarfile.open(
        fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers
    ) as tar:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def until_error(
    elements: Iterable[Any], kind: type[BaseException], match: str = ""
) -> tuple[list[Any], Any]:
    """The elements before an error of this kind, and the error."""
    found: list[Any] = []
    with pytest.raises(kind, match=match or None) as caught:
        for element in elements:
            found.append(element)
    return found, caught.value


def in_new_interpreter(program: str, *arguments: object) -> str:
    """What a program prints, which must end well."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
