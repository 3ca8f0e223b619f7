"""Names of storage options: one that a client does not know is an error at once, with the nearest that it knows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from fsspec import AbstractFileSystem

from streamrec.errors import StorageError

__all__ = ["OF_EVERY_FILESYSTEM", "check_endpoint", "check_names", "nearest", "parameters_of"]

OF_EVERY_FILESYSTEM = frozenset(
    {
        "asynchronous",
        "batch_size",
        "listings_expiry_time",
        "loop",
        "max_paths",
        "skip_instance_cache",
        "use_listings_cache",
    }
)


def parameters_of(*callables: Callable[..., Any]) -> set[str]:
    """The names of all arguments of some callables; of classes, those of the classes above too, up to fsspec's."""
    names: set[str] = set()
    for each in callables:
        parts = [each]
        if isinstance(each, type):
            parts = [cls.__init__ for cls in each.__mro__ if cls not in (object, AbstractFileSystem)]  # type: ignore[misc]
        for part in parts:
            names.update(
                name
                for name, parameter in inspect.signature(part).parameters.items()
                if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) and name != "self"
            )
    return names


def check_names(url: str, place: str, options: Any, known: Iterable[str]) -> None:
    """Refuses options that nobody knows.

    Args:
        url: The URL, for the message.
        place: What holds them: "storage_options", or an option that is a dict itself.
        options: By their names; what is no dict is not looked at.
        known: All names.

    Raises:
        StorageError: One is not known.
    """
    if not isinstance(options, Mapping):
        return
    names = sorted(known)
    for name in options:
        if name not in names:
            raise StorageError(f"{place} has {name!r}, which the client does not know{nearest(str(name), names)}", url)


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that was meant, for the end of a message; where none is near, all of them."""
    names = sorted(known)
    close = get_close_matches(name, names, 1, 0.5)
    return f": did you mean {close[0]!r}?" if close else f"; it knows {', '.join(names)}"


def check_endpoint(url: str, place: str, endpoint: Any) -> None:
    """Refuses an endpoint without a scheme.

    Raises:
        StorageError: It has none.
    """
    if endpoint and "://" not in str(endpoint):
        raise StorageError(f"{place} has no scheme: write 'http://{endpoint}' or 'https://{endpoint}'", url)
