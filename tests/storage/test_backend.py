"""What all backends share: conditions, marks and bodies in memory."""

import pytest

from streamrec.errors import ObjectChangedError
from streamrec.storage.backend import (
    BytesBody,
    ObjectInfo,
    Precondition,
    Replaced,
    UploadTerms,
    check_replaced,
)

PATH = "memory://bucket/x"


@pytest.mark.parametrize(
    ("found", "replaces", "allowed"),
    [
        ("v1", Precondition.ANY, True),
        (Precondition.ABSENT, Precondition.ANY, True),
        (None, Precondition.ANY, True),
        ("v1", "v1", True),
        ("v2", "v1", False),
        (Precondition.ABSENT, "v1", False),
        (Precondition.ABSENT, Precondition.ABSENT, True),
        ("v1", Precondition.ABSENT, False),
        (None, "v1", True),
    ],
)
def test_only_what_may_be_replaced_is_replaced(
    found: Replaced | None, replaces: Replaced, allowed: bool
) -> None:
    if allowed:
        check_replaced(PATH, found, replaces)
        return
    with pytest.raises(ObjectChangedError) as caught:
        check_replaced(PATH, found, replaces)
    assert caught.value.path == PATH


def test_a_mark_is_the_writers_token_or_a_new_one() -> None:
    terms = UploadTerms(token="mine")
    assert terms.mark == terms.make_mark() == "mine"
    without = UploadTerms()
    assert without.mark is None
    assert without.make_mark() != without.make_mark()


async def test_a_body_in_memory_gives_its_bytes_once() -> None:
    body = BytesBody(ObjectInfo(PATH, 5, None), b"abcde")
    buffer = bytearray(3)
    assert await body.readinto(memoryview(buffer)) == 3
    assert buffer == b"abc"
    assert await body.readinto(memoryview(buffer)) == 2
    assert buffer[:2] == b"de"
    assert await body.readinto(memoryview(buffer)) == 0
    await body.aclose()
