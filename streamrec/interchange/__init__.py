"""Examples in other formats: Parquet, JSON lines, WebDataset tar. Sans-I/O: records in, bytes out, and back.

An encoder takes serialized Examples and gives the bytes of a file; a decoder does the reverse. Each feature comes back
as it was: its kind, its values, an empty list, a missing feature. `features.py` holds what all formats have in common.
"""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
