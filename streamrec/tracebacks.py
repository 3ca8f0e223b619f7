"""Short tracebacks: where an error leaves the package, it loses the frames of the package.

Rules:

- An expected error is a StreamrecError, or a `raise` of this package about an argument. Its message
  says what, where, and what to do. The frames of the package, of Python's own library and of the
  clients of stores go, so the caller's own line is the last one. A cause without a line of the
  caller is not printed; it stays reachable as `__context__`.
- An error of a caller's function (in `map`, in a generator) loses the frames between the caller's
  loop and that function. It keeps all later ones, and its cause.
- Any other error may be a bug of this package, and keeps every frame.
- An error stays the same object: its type, attributes and notes do not change.
- With STREAMREC_DEBUG=1 in the environment, nothing is cut. It is read at each error, so a program
  may set it while it runs.

A border is a function that callers call, or the `__next__` of their loop. It cuts in an `except`
clause that ends with a bare `raise`: Python adds a frame to the traceback where an error arrives
from a call, and not where a bare `raise` raises it again.
"""

from __future__ import annotations

import opcode
import os
from collections.abc import Callable
from functools import lru_cache, wraps
from types import FunctionType, TracebackType
from typing import Any, Final, Literal, TypeVar, cast

from streamrec.errors import StreamrecError

__all__ = ["border", "border_methods", "shorten_traceback"]

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

VARIABLE: Final = "STREAMREC_DEBUG"

REFUSALS: Final = (TypeError, ValueError, LookupError, AttributeError)
"""What the package raises for arguments. Only from a `raise` in its own code: the same types from
elsewhere may be bugs."""

BORDER_DUNDERS: Final = frozenset(
    ["__init__", "__iter__", "__aiter__", "__len__", "__getitem__", "__aenter__", "__aexit__"]
)

_PYTHON: Final = os.path.dirname(os.__file__) + os.sep
_INSTALLED: Final = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_CALLS: Final = frozenset(
    f"streamrec.pipeline.{name}" for name in ("stages.calling", "sources.generator")
)
"""Modules that call functions of the caller. What they call belongs to the caller, also if it is
installed as the clients of stores are, or part of Python (`map(json.loads)`, `map(int)`)."""

_RAISE: Final = opcode.opmap.get("RAISE_VARARGS", -1)
_COROUTINE: Final = 0x80  # inspect.CO_COROUTINE, without the import

Origin = Literal["package", "library", "caller"]


def shorten_traceback(error: BaseException) -> None:
    """Cuts the traceback of an error that leaves the package; see the top of this file. Call it in
    an `except` clause, and end the clause with a bare `raise`.
    """
    if not isinstance(error, Exception) or shows_all():
        return
    frames = _frames(error.__traceback__)
    if _is_expected(error, frames):
        called = frames[_called_at(frames) :]
        error.__traceback__ = _joined([each for each in called if _origin(each) != "package"])
        _hide_cause(error)
    elif (first := _called_at(frames)) < len(frames) or _is_call(frames[-1]):
        error.__traceback__ = _joined(frames[first:])
    if error.__traceback__ is None and not isinstance(error, StreamrecError):
        error._streamrec_cut = True  # type: ignore[attr-defined]  # for the next border


def border(function: F) -> F:
    """Decorates a public function, or coroutine function: its errors leave with short tracebacks.

    A call takes about 0.1 us longer. Functions that are called for each record have the `except`
    clause in their own body, which costs nothing.
    """
    if cast("FunctionType", function).__code__.co_flags & _COROUTINE:

        @wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            except Exception as error:
                shorten_traceback(error)
                raise

        return cast("F", call_async)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shorten_traceback(error)
            raise

    return cast("F", call)


def border_methods(cls: C) -> C:
    """Decorates a class that callers use: the public methods and properties of its body become
    borders. Generator functions do not, because their bodies run later.
    """
    for name, value in list(vars(cls).items()):
        if name.startswith("_") and name not in BORDER_DUNDERS:
            continue
        if isinstance(value, FunctionType) and not hasattr(value, "__wrapped__"):
            setattr(cls, name, border(value))
        elif isinstance(value, staticmethod | classmethod):
            setattr(cls, name, type(value)(border(value.__func__)))
        elif isinstance(value, property) and value.fget is not None:
            setattr(cls, name, value.getter(border(value.fget)))
    return cls


def shows_all() -> bool:
    """Whether STREAMREC_DEBUG asks for whole tracebacks."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


@lru_cache(1024)
def origin_of(filename: str) -> Origin:
    """Whose code a file outside this package is."""
    library = filename.startswith((_PYTHON, "<frozen ")) or any(
        part in filename for part in _INSTALLED
    )
    return "library" if library else "caller"


def _frames(trace: TracebackType | None) -> list[TracebackType]:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    return frames


def _joined(frames: list[TracebackType]) -> TracebackType | None:
    joined: TracebackType | None = None
    for each in reversed(frames):
        joined = TracebackType(joined, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return joined


def _module(frame: TracebackType) -> str:
    """The name of a frame's module. Methods that dataclasses makes have no file."""
    return str(frame.tb_frame.f_globals.get("__name__", ""))


def _origin(frame: TracebackType) -> Origin:
    if _module(frame).split(".")[0] == "streamrec":
        return "package"
    return origin_of(frame.tb_frame.f_code.co_filename)


def _is_expected(error: BaseException, frames: list[TracebackType]) -> bool:
    if isinstance(error, StreamrecError) or hasattr(error, "_streamrec_cut"):
        return True
    if not frames or not isinstance(error, REFUSALS) or _origin(frames[-1]) != "package":
        return False
    if _module(frames[-1]) == __name__:  # the call of a public function with other arguments
        return isinstance(error, TypeError)
    code = frames[-1].tb_frame.f_code.co_code
    return code[frames[-1].tb_lasti] == _RAISE  # not an operation of Python that failed


def _is_call(frame: TracebackType) -> bool:
    return _module(frame) in _CALLS


def _called_at(frames: list[TracebackType]) -> int:
    """Where the frames of the caller's function begin; their number if it has none: no function of
    the caller was called, or one in C.
    """
    origins = [_origin(each) for each in frames]
    last = max((n for n, origin in enumerate(origins) if origin == "package"), default=-1)
    first = origins.index("caller") if "caller" in origins else len(frames)
    return min(first, last + 1) if last >= 0 and _is_call(frames[last]) else first


def _hide_cause(error: BaseException) -> None:
    """Keeps a cause that has no line of the caller from being printed."""
    cause = error.__cause__ or error.__context__
    seen: list[BaseException] = []
    each = cause
    while each is not None and each not in seen:
        frames = _frames(each.__traceback__)
        if _called_at(frames) < len(frames):
            return
        seen.append(each)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    if cause is not None:
        error.__cause__ = None  # sets __suppress_context__, too
        error.__context__ = cause
