"""Sources: where elements come from, and sources that run other chains.

The latter run them again, ahead, side by side or shuffled, or keep their elements.
"""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
