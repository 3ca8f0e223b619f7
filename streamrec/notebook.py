"""Displays batches in notebooks: `show(batch)` as the last line of a cell.

Datasets, statistics, `Frames` and `BytesColumn` have an HTML form; a parsed batch, a plain dict,
has none. After `%load_ext streamrec.notebook` a notebook displays it as `show` does, and shortens
long byte strings in its output.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from streamrec import html
from streamrec.display import escape
from streamrec.example import BytesColumn, RaggedTensor, SparseTensor
from streamrec.example.columns import CompositeTensor, check_column, format_values
from streamrec.tfrecord import Frames

__all__ = ["Shown", "load_ipython_extension", "show"]


def __dir__() -> list[str]:
    """Only what is public, so that completion shows no helper."""
    return __all__


class Shown:
    """Columns that a notebook draws as a table; made by `show`."""

    def __init__(self, batch: Any) -> None:
        self._columns = list(columns_of(batch, ""))

    def __repr__(self) -> str:
        return "\n".join(
            f"{escape(name) or 'batch'}: {describe_column(column)}"
            for name, column in self._columns
        )

    def _repr_html_(self) -> str:
        budget = html.Budget()
        head = [
            html.text(name) + "<br>" + html.element("small", html.text(describe_column(column)))
            for name, column in self._columns
        ]
        cells = [
            [html.format_value(value, budget) for value in rows(column)]
            for _, column in self._columns
        ]
        count = max(map(len, cells), default=0)
        padded = [column + [""] * (count - len(column)) for column in cells]
        more = max((length(column) for _, column in self._columns), default=0) - count
        note = html.element("small", f"and {more:,} rows more") if more > 0 else ""
        return html.fragment(html.table(head, zip(*padded, strict=True)), note)


def show(batch: Any) -> Any:
    """Displays a batch as a table: a column for each feature, with its dtype and shape, and the
    first rows.

    JPEG and PNG, and uint8 arrays of shape `[n, height, width, 1 or 3]`, become images. The table
    has at most 8 rows and 4 MiB of images.

    Args:
        batch: A dict or a tuple of columns, also nested, or one column: an array, `Frames`,
            `BytesColumn`, a ragged or sparse tensor. An object with its own HTML form, such as a
            Dataset, is returned unchanged.

    Returns:
        An object that a notebook displays. Its `repr` is a line for each column.

    Examples:
        >>> import numpy as np
        >>> show({"label": np.arange(3), "mean": np.zeros((3, 2), np.float32)})
        label: int64 [3]
        mean: float32 [3, 2]
    """
    draws_itself = hasattr(batch, "_repr_html_") and not isinstance(batch, Frames | BytesColumn)
    return batch if draws_itself else Shown(batch)


def load_ipython_extension(shell: Any) -> None:
    """Registers the display of batches; IPython calls it for `%load_ext streamrec.notebook`."""
    formatters = shell.display_formatter.formatters
    formatters["text/html"].for_type(dict, draw_batch)
    text = formatters["text/plain"]
    text.for_type(bytes, lambda value, printer, cycle: printer.text(reprlib.repr(value)))
    text.for_type(np.ndarray, lambda value, printer, cycle: printer.text(format_values(value)))


def draw_batch(batch: dict[Any, Any]) -> str | None:
    """A batch as HTML; None for any other dict."""
    kinds = (np.ndarray, Frames, BytesColumn, CompositeTensor)
    is_batch = batch and all(isinstance(column, kinds) for column in batch.values())
    return Shown(batch)._repr_html_() if is_batch else None


def columns_of(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The columns of nested dicts and tuples, with their names."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from columns_of(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            yield from columns_of(part, f"{name}.{number}" if name else str(number))
    else:
        check_column(value, name or None)
        yield name, value


def describe_column(column: Any) -> str:
    """A column's dtype and shape."""
    if isinstance(column, RaggedTensor):
        return f"ragged {describe_column(column.flat_values)}"
    if isinstance(column, SparseTensor):
        return f"sparse {describe_column(column.values)}"
    if isinstance(column, Frames):
        return f"records [{len(column)}]"
    if isinstance(column, BytesColumn):
        return f"bytes {list(column.shape)}"
    kind = getattr(column, "dtype", type(column).__name__)
    return f"{'bytes' if kind == np.dtype(object) else kind} {list(np.shape(column))}"


def length(column: Any) -> int:
    """The number of rows of a column; 1 for a single value."""
    return len(column) if getattr(column, "shape", (0,)) and hasattr(column, "__len__") else 1


def rows(column: Any) -> Iterator[Any]:
    """The rows of a column that are displayed."""
    if (
        isinstance(column, bytes | str)
        or not hasattr(column, "__len__")
        or not getattr(column, "shape", (0,))
    ):
        return iter([column])
    return (plain(column[row]) for row in range(min(length(column), html.ROWS)))


def plain(values: Any) -> Any:
    """A row as a NumPy array or scalar; for a ragged or sparse row its values."""
    if isinstance(values, RaggedTensor | SparseTensor):
        values = values.flat_values if isinstance(values, RaggedTensor) else values.values
    return values.to_numpy() if isinstance(values, BytesColumn) else values
