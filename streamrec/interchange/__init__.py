"""Examples in other formats: Parquet, JSON lines, WebDataset tar. Sans-I/O: records in, bytes out, and back.

An encoder takes serialized Examples and gives the bytes of a file; a decoder does the reverse. Each feature comes back
as it was: its kind, its values, an empty list, a missing feature. `features.py` holds what all formats have in common.
"""

from streamrec.interchange.features import (
    FORMATS,
    Changes,
    Codec,
    Field,
    FileEncoder,
    Format,
    Kind,
    Look,
    Reading,
    codec_of,
    example_of,
    features_of,
    format_of,
    join_schemas,
    kind_of,
)

__all__ = [
    "FORMATS",
    "Changes",
    "Codec",
    "Field",
    "FileEncoder",
    "Format",
    "Kind",
    "Look",
    "Reading",
    "codec_of",
    "example_of",
    "features_of",
    "format_of",
    "join_schemas",
    "kind_of",
]
