"""Which answers of an HTTP server have the bytes that were requested, by their headers alone."""

import pytest

from streamrec.storage.faults import Cause, TransientError, http_body_range


@pytest.mark.parametrize(
    ("headers", "start", "end", "size"),
    [
        ({"Content-Range": "bytes 5-9/20"}, 5, 10, 20),
        ({"Content-Range": "bytes 5-19/20"}, 5, 50, 20),  # the object ends before
        ({"Content-Range": "bytes 5-19/20"}, 5, None, 20),
        ({"Content-Range": "bytes 5-9/*"}, 5, 10, None),
        ({"Content-Range": "bytes 5-9/20", "Content-Length": "5"}, 5, 10, 20),
        ({"Content-Range": "bytes 5-9/20", "Content-Length": "4"}, 5, 10, 20),  # it is compressed
    ],
)
def test_a_206_with_the_requested_range_tells_the_size(
    headers: dict[str, str], start: int, end: int | None, size: int | None
) -> None:
    assert http_body_range(206, headers, start, end) == size


@pytest.mark.parametrize(
    ("headers", "start", "end"),
    [
        ({"Content-Range": "bytes 4-9/20"}, 5, 10),
        ({"Content-Range": "bytes 5-10/20"}, 5, 10),
        ({"Content-Range": "bytes 5-8/20"}, 5, 10),
        ({"Content-Range": "bytes 5-18/20"}, 5, None),
        ({"Content-Range": "bytes 5-8/*"}, 5, 10),
        ({"Content-Range": "bytes 5-9/20", "Content-Length": "6"}, 5, 10),  # one byte too many
    ],
)
def test_a_206_with_other_bytes_is_a_wrong_answer(
    headers: dict[str, str], start: int, end: int | None
) -> None:
    with pytest.raises(TransientError, match="Content-Range") as caught:
        http_body_range(206, headers, start, end)
    assert caught.value.cause is Cause.WRONG_ANSWER
