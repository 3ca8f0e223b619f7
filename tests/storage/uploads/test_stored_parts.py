"""What S3's answers to an upload's parts prove of the object."""

from hypothesis import given
from hypothesis import strategies as st

from streamrec.storage.backends.s3.stored_parts import StoredPart, StoredParts


@given(order=st.permutations(range(12)))
def test_parts_are_in_the_order_of_their_numbers_however_they_arrive(order: list[int]) -> None:
    parts = StoredParts()
    for index in order:
        assert not parts.begin(index)
        parts.add(index, StoredPart(f"etag {index}", index, checked=index % 2 == 0))
    assert [part.etag for part in parts.in_order()] == [f"etag {index}" for index in range(12)]
    entries = parts.entries()
    assert [entry["PartNumber"] for entry in entries] == list(range(1, 13))
    assert [entry["ETag"] for entry in entries] == [part.etag for part in parts.in_order()]
    checked = [entry["PartNumber"] for entry in entries if "ChecksumCRC32C" in entry]
    assert checked == list(range(1, 13, 2))


def test_a_part_that_is_sent_again_is_known_and_its_last_answer_counts() -> None:
    parts = StoredParts()
    assert not parts.begin(3)
    parts.add(3, StoredPart("first", 1, checked=False))
    assert parts.begin(3)
    parts.add(3, StoredPart("second", 1, checked=False))
    assert parts.entries() == [{"PartNumber": 4, "ETag": "second"}]


def test_an_upload_without_parts_has_no_entries() -> None:
    assert StoredParts().in_order() == StoredParts().entries() == []
