from streamrec.cli.formats.codec import (
    FORMATS,
    Codec,
    Field,
    FileEncoder,
    Format,
    Look,
    Reading,
    codec_of,
    format_of,
)
from streamrec.cli.formats.gunzip import BoundedGzip
from streamrec.cli.formats.record_limit import RECORD_BYTES, LimitedFile, describe_limit

__all__ = [
    "FORMATS",
    "RECORD_BYTES",
    "BoundedGzip",
    "Codec",
    "Field",
    "FileEncoder",
    "Format",
    "LimitedFile",
    "Look",
    "Reading",
    "codec_of",
    "describe_limit",
    "format_of",
]
