"""Types of the C extension."""

from typing_extensions import Buffer

def encode_examples(
    columns: tuple[tuple[bytes, int, Buffer | tuple[bytes, ...], Buffer | None, int | Buffer], ...],
    rows: int,
    /,
) -> tuple[int, int, int, bytes | None, bytes | None]: ...
