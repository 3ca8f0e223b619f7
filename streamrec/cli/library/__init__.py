"""Names of the library that the command line uses and that are not public in `streamrec` itself.

All other files of the command line import them from here. So `__init__.pyi`, which is the list,
shows which changes inside the library the command line would notice.
"""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
