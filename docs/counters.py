"""An extension of griffe: counters (`streamrec/storage/counters.py`) explain themselves.

The site reads the source without running it, so it does not see what `explain_counters` adds to a
docstring. This makes the sentence of each counter the docstring of its attribute.
"""

import ast
from typing import Any

import griffe


class Counters(griffe.Extension):
    """Gives `requests: int = counter("1", "Requests sent.")` a docstring."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Called for each attribute of each module."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and value.function.canonical_name == "counter":
            help = ast.literal_eval(str(value.arguments[1]))
            attr.docstring = griffe.Docstring(help, parent=attr)
            attr.value = None
