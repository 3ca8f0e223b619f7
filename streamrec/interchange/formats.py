"""The formats by name, and which one a file's name says."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Final

from streamrec.errors import MissingExtraError
from streamrec.interchange.features import Codec

__all__ = ["FORMATS", "Format", "codec_of", "format_of"]

FORMATS: Final = {
    "tfrecord": (".tfrecord", ".tfrecords"),
    "parquet": (".parquet", ".pq"),
    "jsonl": (".jsonl", ".ndjson"),
    "webdataset": (".tar",),
}
"""The endings of each format's files; the first is the one that is written."""

GZIP: Final = ".gz"


@dataclass(frozen=True, slots=True)
class Format:
    """How a file is written.

    Attributes:
        name: "tfrecord", "parquet", "jsonl" or "webdataset".
        gzip: Whether its name says that it is compressed with gzip.
    """

    name: str
    gzip: bool


def format_of(path: str, wanted: str | None = None) -> Format:
    """The format of a file: as is wanted, or else as its name ends; what ends otherwise is TFRecord.

    Examples:
        >>> format_of("s3://b/train.parquet"), format_of("a.jsonl.gz"), format_of("a", "webdataset")
        (Format(name='parquet', gzip=False), Format(name='jsonl', gzip=True), Format(name='webdataset', gzip=False))
    """
    if path.endswith(".tgz"):
        path = path.removesuffix(".tgz") + ".tar" + GZIP
    gzip, plain = path.endswith(GZIP), path.removesuffix(GZIP)
    named = next((name for name, endings in FORMATS.items() if plain.endswith(endings)), "tfrecord")
    return Format(wanted or named, gzip)


def codec_of(name: str) -> Codec:
    """How a format other than TFRecord is written and read.

    Raises:
        MissingExtraError: Parquet is asked for, and pyarrow is not installed.
    """
    try:
        codec: Codec = import_module(f"streamrec.interchange.{name}").CODEC
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise MissingExtraError("Parquet needs a package more: pip install 'streamrec[arrow]'") from error
    return codec
