from streamrec.interchange.features import (
    FORMATS,
    Changes,
    Codec,
    Field,
    FileEncoder,
    Format,
    Look,
    Reading,
    codec_of,
    example_of,
    features_of,
    format_of,
    join_schemas,
)
from streamrec.interchange.gunzip import BoundedGzip
from streamrec.interchange.record_limit import RECORD_BYTES, LimitedFile, describe_limit

__all__ = [
    "FORMATS",
    "RECORD_BYTES",
    "BoundedGzip",
    "Changes",
    "Codec",
    "Field",
    "FileEncoder",
    "Format",
    "LimitedFile",
    "Look",
    "Reading",
    "codec_of",
    "describe_limit",
    "example_of",
    "features_of",
    "format_of",
    "join_schemas",
]
