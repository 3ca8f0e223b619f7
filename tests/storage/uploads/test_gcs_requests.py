"""The requests that write to GCS, and what their answers prove of the object."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.kernels import crc32c
from streamrec.storage.backend import ContentDigest, Precondition, Replaced, encode_crc32c
from streamrec.storage.backends.gcs.upload_requests import (
    condition_of,
    difference,
    multipart_body,
    range_of_part,
)

DATA = b"some bytes"
SENT = ContentDigest(len(DATA), crc32c(DATA))


@pytest.mark.parametrize(
    ("replaces", "query"),
    [
        (Precondition.ANY, {}),
        (Precondition.ABSENT, {"ifGenerationMatch": "0"}),
        ("17", {"ifGenerationMatch": "17"}),
    ],
)
def test_a_condition_names_the_generation_that_may_be_replaced(
    replaces: Replaced, query: dict[str, str]
) -> None:
    assert condition_of(replaces) == query


@given(start=st.integers(0, 1000), size=st.integers(1, 1000))
def test_a_range_ends_at_its_last_byte(start: int, size: int) -> None:
    stop = start + size
    assert range_of_part(start, stop, None) == {"Content-Range": f"bytes {start}-{stop - 1}/*"}
    last = range_of_part(start, stop, ContentDigest(stop, 1))
    assert last["Content-Range"] == f"bytes {start}-{stop - 1}/{stop}"
    assert last["X-Goog-Hash"] == "crc32c=AAAAAQ=="


def test_an_empty_last_part_ends_the_upload_without_bytes() -> None:
    assert range_of_part(8, 8, ContentDigest(8, 0))["Content-Range"] == "bytes */8"


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"size": "10", "crc32c": encode_crc32c(SENT.crc32c)}, None),
        ({"size": "10"}, None),
        ({"size": "9", "crc32c": encode_crc32c(SENT.crc32c)}, "it has 9 bytes where 10 were sent"),
        ({"size": "10", "crc32c": "AAAAAQ=="}, "its CRC32C is AAAAAQ=="),
    ],
)
def test_an_object_is_compared_by_size_and_checksum(
    item: dict[str, Any], reason: str | None
) -> None:
    found = difference(SENT, item)
    assert found is None if reason is None else found is not None and found.startswith(reason)


def test_a_body_of_two_parts_holds_metadata_and_bytes() -> None:
    pieces = multipart_body("line", {"name": "x"}, [memoryview(DATA)])
    metadata, data = b"".join(pieces).split(b"--line\r\n")[1:]
    assert metadata.endswith(b'\r\n\r\n{"name": "x"}\r\n')
    assert data.endswith(b"\r\n\r\n" + DATA + b"\r\n--line--\r\n")
