"""Stages: what happens to elements, as frozen descriptions and steps without I/O.

`engine/stage.py` has the rules.
"""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
