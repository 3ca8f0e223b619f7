"""Which walker parses: the native one, unless `STREAMREC_PURE=1` left it out."""

from __future__ import annotations

from typing import Final

from streamrec.example.parsing.reference import ReferenceWalker
from streamrec.example.parsing.walk import Walker
from streamrec.kernels import NATIVE

if NATIVE:
    from streamrec.example.parsing.native import NativeWalker

WALKER: Final[Walker] = NativeWalker() if NATIVE else ReferenceWalker()
"""What the parse functions run on."""
