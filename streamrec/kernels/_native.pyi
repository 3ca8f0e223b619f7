# The C module.
from typing import Any

# Encoding: values and spans are buffers, which NumPy's types don't say on Python 3.11.
def encode_examples(
    columns: tuple[tuple[bytes, int, Any, Any, Any], ...], rows: int, /
) -> tuple[int, int, int, bytes | None, bytes | None]: ...
