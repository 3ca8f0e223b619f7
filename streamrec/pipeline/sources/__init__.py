"""Sources: where elements come from, and sources that run other chains: again, ahead, side by side,
shuffled, kept.
"""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
