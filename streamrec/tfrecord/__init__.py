"""TFRecord framing and compression, sans-I/O: knows bytes, not files."""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
