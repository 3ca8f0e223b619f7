"""Converts Examples to Parquet, JSON lines and WebDataset tars, and back, without I/O.
from streamrec.cli.library import lazy_names

An encoder takes serialized Examples and returns the bytes of a file; a decoder does the reverse. A
round trip keeps the kind and the values of each feature, empty lists and missing features.
`codec.py` is common to all formats.
"""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
