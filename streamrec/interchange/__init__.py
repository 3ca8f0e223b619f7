"""Examples in other formats: Parquet, JSON lines, WebDataset tar. Sans-I/O: records in, bytes out, and back.

An encoder takes serialized Examples and gives the bytes of a file; a decoder does the reverse. Each feature comes back
as it was: its kind, its values, an empty list, a missing feature. `features.py` says what all formats have in common,
`columns.py` what a Parquet file or a tar must know of all records before its first byte.
"""

from streamrec.interchange.columns import Changes, Column, combined
from streamrec.interchange.features import Codec, Encoder, Kind, Look, Reading, example_of, features_of, kind_of
from streamrec.interchange.formats import FORMATS, Format, codec_of, format_of

__all__ = [
    "FORMATS",
    "Changes",
    "Codec",
    "Column",
    "Encoder",
    "Format",
    "Kind",
    "Look",
    "Reading",
    "codec_of",
    "combined",
    "example_of",
    "features_of",
    "format_of",
    "kind_of",
]
