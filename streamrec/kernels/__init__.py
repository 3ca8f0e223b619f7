"""Functions over buffers: the only code that touches every byte.

`_native` holds them in C (GIL released, no Python object per record); `reference` holds the same functions
in plain Python, written to be read: it is the specification, and one test suite runs over both.

The native module runs unless `STREAMREC_PURE=1` is set in the environment; `NATIVE` tells which one does.
A missing extension is an error, never a silent fall-back: it would be hundreds of times slower.
"""

import os
from typing import Final

NATIVE: Final = os.environ.get("STREAMREC_PURE") != "1"
