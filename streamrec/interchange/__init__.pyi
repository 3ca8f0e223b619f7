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

__all__ = [
    "FORMATS",
    "BoundedGzip",
    "Changes",
    "Codec",
    "Field",
    "FileEncoder",
    "Format",
    "Look",
    "Reading",
    "codec_of",
    "example_of",
    "features_of",
    "format_of",
    "join_schemas",
]
