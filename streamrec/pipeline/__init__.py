"""Datasets: descriptions of what to read, and the driver that runs them."""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
