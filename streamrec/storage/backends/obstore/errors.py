"""What obstore's exceptions mean. Pure.

Most of them are one class, GenericError, whose text says what happened: the status and the body of an answer
in its first lines, the kind of a broken connection in the Rust structure below them. So that text is read,
and what it does not say (a Retry-After) is not known.
"""

from __future__ import annotations

import re
from typing import Final

from obstore import exceptions as obs

from streamrec.errors import NotFoundError, PermissionDeniedError, StorageError
from streamrec.storage.resilience.faults import Cause, TransientError, changed, from_status, seam_of

__all__ = ["PastTheEndError", "seam"]

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_KIND: Final = re.compile(r"HttpError \{\s*kind: (\w+)|Http\(\s*HttpError \{\s*kind: (\w+)")
_CAUSES: Final = {"Connect": Cause.CONNECT, "Timeout": Cause.TIMED_OUT}
_FOREIGN: Final = (obs.BaseError, OSError, ValueError)
"""Besides its own exceptions obstore raises FileNotFoundError, and ValueError for a key that it cannot name."""


class PastTheEndError(StorageError):
    """A 416."""


def _translate(error: Exception, path: str, start: int | None, end: int | None) -> StorageError | TransientError:
    text = str(error)
    said, _, detail = text.partition("\nDebug source:")
    said = " ".join(said.split())[:500]
    if isinstance(error, obs.PreconditionError):
        return changed(path, start, end)
    if status := _STATUS.search(said):
        return _from_answer(int(status[1]), said, path, start, end)
    if isinstance(error, FileNotFoundError | obs.NotFoundError):
        return NotFoundError(f"there is no such object or bucket ({said}): check the URL", path, start, end)
    if isinstance(error, obs.PermissionDeniedError | obs.UnauthenticatedError):
        return PermissionDeniedError(f"the store refused access ({said}): check the credentials", path, start, end)
    if isinstance(error, ValueError):
        return StorageError(f"obstore cannot name this key ({said}): leave out backend='obstore'", path, start, end)
    if kind := _KIND.search(detail):
        return TransientError(_CAUSES.get(kind[1] or kind[2], Cause.BROKEN), said)
    if "NotPartial" in detail:
        return TransientError(Cause.WRONG_RANGE, "a 200 with all bytes where some were wanted")
    if "UnexpectedRange" in detail:
        return TransientError(Cause.WRONG_RANGE, said)
    return StorageError(f"obstore failed ({said})", path, start, end)


def _from_answer(
    status: int, said: str, path: str, start: int | None, end: int | None
) -> StorageError | TransientError:
    """What an answer of S3's or GCS's XML interface means."""
    code, message = _CODE.search(said), _MESSAGE.search(said)
    if status == 416:
        return PastTheEndError(said, path, start, end)
    words = message[1] if message else said if not code else ""
    return from_status(status, words, path, start, end, code=code[1] if code else "")


seam = seam_of(_FOREIGN, _translate)
