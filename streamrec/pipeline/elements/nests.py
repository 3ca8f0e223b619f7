"""Nests: an element, or dicts and tuples of them (named tuples too), as tf.data has them; lists are no nests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from streamrec.example import RaggedTensor, SparseTensor

__all__ = ["is_nest", "leaves", "map_nest", "map_nests", "same_nest"]


def is_nest(value: Any) -> bool:
    """Whether a value has parts: a ragged or sparse tensor is one value, though it is a named tuple."""
    return isinstance(value, dict | tuple) and not isinstance(value, RaggedTensor | SparseTensor)


def leaves(nest: Any) -> Iterator[Any]:
    """All values of a nest, in order."""
    if not is_nest(nest):
        yield nest
        return
    for part in nest.values() if isinstance(nest, dict) else nest:
        yield from leaves(part)


def map_nest(function: Callable[[Any], Any], nest: Any) -> Any:
    """The same nest of what the function makes of each value."""
    return map_nests(lambda values: function(values[0]), [nest])


def map_nests(function: Callable[[list[Any]], Any], nests: list[Any]) -> Any:
    """A nest of what the function makes of the values that stand at the same place in nests of one structure."""
    first = nests[0]
    if not is_nest(first):
        return function(nests)
    if isinstance(first, dict):
        return {key: map_nests(function, [nest[key] for nest in nests]) for key in first}
    parts = [map_nests(function, list(values)) for values in zip(*nests, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def same_nest(one: Any, other: Any) -> bool:
    """Whether two nests have one structure."""
    if not is_nest(one) or type(one) is not type(other):
        return not is_nest(one) and not is_nest(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_nest(one[key], other[key]) for key in one)
    return len(one) == len(other) and all(map(same_nest, one, other))
